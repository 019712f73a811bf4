"""A machine's rules, and who is told of events: `site.yaml` in the stack's home, which model authors can't write."""

import contextlib
from pathlib import Path

from pydantic import Field, ValidationError

from shiplift.runtime.base.errors import ShipliftError, SpecInvalid
from shiplift.runtime.events.targets import EventSettings
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.site import SitePolicy
from shiplift.runtime.serving.machine.server_memory import default_limit_mb
from shiplift.runtime.spec.document import load_mapping, problems

FILE = "site.yaml"


class ServerRules(Record):
    """What production's server may use.

    `memory_mb` limits its memory, files in memory included; above it, the server is restarted. From two thirds of it in
    the server's own process, clients that send much are refused. None means three quarters of the machine's memory. The
    value is read when the server starts.
    """

    memory_mb: int | None = Field(None, ge=256, strict=True)


class SiteFile(Record):
    """The sections of `site.yaml`; each is optional.

    `prometheus` is the URL of the Prometheus that a bake's queries ask.
    """

    policy: SitePolicy = SitePolicy()
    server: ServerRules = ServerRules()
    events: EventSettings = EventSettings()
    prometheus: str = Field("", pattern=r"^(https?://[^\s@]+)?$")


def read(home: Path) -> SiteFile:
    """The site's rules; the defaults if there is no file.

    Raises:
        SpecInvalid: the file is not valid. The message names each wrong field.
    """
    file = home / FILE
    text = file.read_text() if file.is_file() else ""
    try:
        return SiteFile.model_validate(load_mapping(text, f"the site's file {FILE}", by_owner=True))
    except ValidationError as error:
        raise SpecInvalid(f"{FILE}: {'; '.join(problems(error, SiteFile))}", do="Fix that field.") from error


def server_memory_mb(home: Path) -> int:
    """The memory that a home's server may use, in MiB; the default if `site.yaml` sets none or can't be read."""
    with contextlib.suppress(ShipliftError, OSError):
        if own := read(home).server.memory_mb:
            return own
    return default_limit_mb()
