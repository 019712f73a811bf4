"""What starts releases on a cluster, as one file: the receiver, the reconciler and a git push's pod each read it.

It holds names and paths, never a secret: those are files, mounted from Kubernetes Secrets, and read anew each time, so
that a rotated one counts at once.
"""

import re
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationError, model_validator

from shiplift.runtime.base.errors import UsageError
from shiplift.runtime.base.git import SCHEMES
from shiplift.runtime.base.names import push_name
from shiplift.runtime.records.base import Record

MAX_SECRET_BYTES = 4096


def _clone_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES or not url.startswith(f"{parts.scheme}://"):
        raise ValueError(f"must begin with one of {', '.join(f'{scheme}://' for scheme in SCHEMES)}")
    if parts.password or (parts.username and parts.scheme != "ssh"):
        raise ValueError("must hold no credentials: name a file of them in `credentials`")
    if not url.isprintable() or " " in url:
        raise ValueError("must be one printable word")
    return url


def _branch(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._/-]{0,200}", name) or ".." in name or name.endswith((".lock", "/")):
        raise ValueError("is no branch's name")
    return name


class Repository(Record):
    """A git repository whose pushes release models: only pushes to `branch`, and only from `host`, count.

    `credentials` is a file in git's credential-store format (`https://USER:TOKEN@HOST`), for https; `ssh_key` and
    `known_hosts` are files for ssh.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9._-]+)+$", max_length=200)
    host: Literal["github", "gitlab"]
    url: Annotated[str, AfterValidator(_clone_url)]
    branch: Annotated[str, AfterValidator(_branch)] = "main"
    credentials: Path | None = None
    ssh_key: Path | None = None
    known_hosts: Path | None = None


class SecretFiles(Record):
    """Files that hold one secret each. Two for the same sender while one is being replaced: both are right then."""

    mlflow: tuple[Path, ...] = ()
    github: tuple[Path, ...] = ()
    gitlab: tuple[Path, ...] = ()


class Limits(Record):
    """What one sender may cost a receiver. The rate is per replica and source address."""

    deliveries_per_minute: int = Field(600, ge=1)
    body_timeout_s: float = Field(10, gt=0, le=300)
    connections: int = Field(256, ge=1)


class Listening(Record):
    """Where the receiver listens, and whose `X-Forwarded-For` it believes (addresses or networks)."""

    host: str = "0.0.0.0"  # noqa: S104 - a pod's own address
    port: int = Field(8080, ge=1, le=65535)
    trusted_proxies: tuple[str, ...] = ()


class Reconciling(Record):
    """How often, and how patiently, the reconciler looks.

    `webhook_url` is where MLflow announces new versions; empty: somebody else looks after its webhook. Versions older
    than `since` are left alone; None: older than the pipeline on this cluster. A pod that can't start is given
    `stuck_s`, one that finds no node `unschedulable_s`: raise that where nodes are added on demand. Where a node fits
    and is full, it is given `full_s`: releases that run make room.
    """

    every_s: float = Field(60, ge=1)
    stuck_s: float = Field(120, ge=0)
    unschedulable_s: float = Field(120, ge=0)
    full_s: float = Field(3600, ge=0)
    webhook_url: str = ""
    since: float | None = None
    port: int = Field(8080, ge=1, le=65535)


class TriggerSettings(Record):
    """All of it."""

    namespace: str = Field(min_length=1)
    registry_uri: str = Field(min_length=1)
    secrets: SecretFiles = SecretFiles()
    repositories: tuple[Repository, ...] = ()
    limits: Limits = Limits()
    receiver: Listening = Listening()
    reconciler: Reconciling = Reconciling()
    git_timeout_s: float = Field(120, gt=0)

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        seen: dict[str, str] = {}
        for one in self.repositories:
            other = seen.setdefault(push_name(one.name, ""), one.name)
            if other is not one.name:
                raise ValueError(f"repositories {other!r} and {one.name!r} have names that are too alike")
        return self

    def repository(self, name: str) -> Repository | None:
        """The repository of that name, as far as hosts tell names apart; None: it is not listed."""
        return next((one for one in self.repositories if one.name.casefold() == name.casefold()), None)


def load(file: Path) -> TriggerSettings:
    """The settings in a JSON file.

    Raises:
        UsageError: it can't be read, or a field is wrong; every wrong field is named.
    """
    try:
        return TriggerSettings.model_validate_json(file.read_bytes())
    except OSError as error:
        raise UsageError(f"{file} can't be read: {error.strerror}", do="Give the path of the settings.") from error
    except ValidationError as error:
        wrong = (
            f"{'.'.join(map(str, one['loc'])) or 'the file'}: {one['msg']}" for one in error.errors(include_url=False)
        )
        raise UsageError(f"{file.name}: {'; '.join(wrong)}", do="Mend these fields.") from error


def read_secrets(files: tuple[Path, ...]) -> tuple[str, ...]:
    """The secrets that are there now, in their order; a missing or empty file is none."""
    found: list[str] = []
    for file in files:
        try:
            with file.open("rb") as opened:
                secret = opened.read(MAX_SECRET_BYTES).decode().strip()
        except (OSError, UnicodeDecodeError):
            continue
        if secret:
            found.append(secret)
    return tuple(found)
