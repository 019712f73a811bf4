"""The settings of a cluster's triggers, in one file that the receiver, the reconciler and a git push's pod read.

The file has names and paths, never secrets. Secrets are files of their own, mounted from Kubernetes Secrets and read
again each time, so that a rotated secret takes effect at once.
"""

import re
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationError, model_validator

from shiplift.runtime.base.errors import UsageError
from shiplift.runtime.base.git import SCHEMES, Origin
from shiplift.runtime.base.names import repository_slug
from shiplift.runtime.events.targets import EventSettings
from shiplift.runtime.records.base import Record

MAX_SECRET_BYTES = 4096


def _clone_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES or not url.startswith(f"{parts.scheme}://"):
        raise ValueError(f"must begin with one of {', '.join(f'{scheme}://' for scheme in SCHEMES)}")
    if parts.password or (parts.username and parts.scheme != "ssh"):
        raise ValueError("must contain no credentials: name a file with them in `credentials`")
    parts.port  # noqa: B018 - a ValueError if it is not a port
    if not url.isprintable() or " " in url:
        raise ValueError("must be printable and without spaces")
    return url


def _branch(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._/-]{0,200}", name) or ".." in name or name.endswith((".lock", "/")):
        raise ValueError("is not a valid branch name")
    return name


class Repository(Record):
    """A git repository whose pushes release models, if they go to `branch` and `host` announces them.

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

    def origin(self, timeout_s: float) -> Origin:
        """What git needs to reach it."""
        return Origin(
            url=self.url,
            credentials=self.credentials,
            ssh_key=self.ssh_key,
            known_hosts=self.known_hosts,
            timeout_s=timeout_s,
        )


class SecretFiles(Record):
    """Files with one secret each. While a sender's secret is being replaced, it has two, and both are valid."""

    mlflow: tuple[Path, ...] = ()
    github: tuple[Path, ...] = ()
    gitlab: tuple[Path, ...] = ()


class DeliveryLimits(Record):
    """How much load a sender may cause. The rate and `connections_per_source` apply per replica and source address.

    A connection must send a request's headers within `header_timeout_s`.
    """

    deliveries_per_minute: int = Field(600, ge=1)
    body_timeout_s: float = Field(10, gt=0, le=300)
    header_timeout_s: float = Field(5, gt=0, le=300)
    connections: int = Field(256, ge=2)
    connections_per_source: int = Field(64, ge=1)


class Listening(Record):
    """Where the receiver listens, and whose `X-Forwarded-For` it trusts (addresses or networks).

    `health_port` answers only `/healthz`, `/readyz` and `/metrics`, from a separate thread. If it is 0, `port` answers
    them.
    """

    host: str = "0.0.0.0"  # noqa: S104 - a pod's own address
    port: int = Field(8080, ge=1, le=65535)
    health_port: int = Field(8081, ge=0, le=65535)
    trusted_proxies: tuple[str, ...] = ()


class Reconciling(Record):
    """How often the reconciler looks, and how long it waits for pods.

    `webhook_url` is where MLflow announces new versions; if empty, the reconciler leaves MLflow's webhooks alone.
    Versions older than `since` (default: the installation of the pipeline on this cluster) are ignored.

    A pod that can't start gets `stuck_s`, and one that fits no node gets `unschedulable_s`: raise that on clusters that
    add nodes on demand. If a node fits but is full, the pod gets `full_s`, because running releases will free it.

    Each repository is asked for its branch's latest commit every `git_every_s`. A commit that no webhook announces is
    released after `git_grace_s`.
    """

    every_s: float = Field(60, ge=1)
    stuck_s: float = Field(120, ge=0)
    unschedulable_s: float = Field(120, ge=0)
    full_s: float = Field(3600, ge=0)
    git_every_s: float = Field(60, ge=1)
    git_grace_s: float = Field(60, ge=0)
    webhook_url: str = ""
    since: float | None = None
    port: int = Field(8080, ge=1, le=65535)


class TriggerSettings(Record):
    """All settings of a cluster's triggers."""

    namespace: str = Field(min_length=1)
    registry_uri: str = Field(min_length=1)
    holder: str = ""
    secrets: SecretFiles = SecretFiles()
    repositories: tuple[Repository, ...] = ()
    limits: DeliveryLimits = DeliveryLimits()
    receiver: Listening = Listening()
    reconciler: Reconciling = Reconciling()
    git_timeout_s: float = Field(120, gt=0)
    events: EventSettings = Field(EventSettings(), exclude_if=lambda events: events == EventSettings())

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        names: dict[str, str] = {}
        for repository in self.repositories:
            other = names.setdefault(repository_slug(repository.name), repository.name)
            if other is not repository.name:
                raise ValueError(f"the names of repositories {other!r} and {repository.name!r} are too similar")
        return self

    def repository(self, name: str) -> Repository | None:
        """The repository with that name (case-insensitive, like the hosts), or None if it is not listed."""
        return next((entry for entry in self.repositories if entry.name.casefold() == name.casefold()), None)


def load(file: Path) -> TriggerSettings:
    """The settings in a JSON file.

    Raises:
        UsageError: the file can't be read, or has wrong fields. The message names each field.
    """
    try:
        return TriggerSettings.model_validate_json(file.read_bytes())
    except OSError as error:
        raise UsageError(f"{file} can't be read: {error.strerror}", do="Pass the path of the settings.") from error
    except ValidationError as error:
        wrong = (
            f"{'.'.join(map(str, detail['loc'])) or 'the file'}: {detail['msg']}"
            for detail in error.errors(include_url=False)
        )
        raise UsageError(f"{file.name}: {'; '.join(wrong)}", do="Fix these fields.") from error


def read_secrets(files: tuple[Path, ...]) -> tuple[str, ...]:
    """The secrets that exist now, in order; missing and empty files are skipped."""
    secrets: list[str] = []
    for file in files:
        try:
            with file.open("rb") as opened:
                secret = opened.read(MAX_SECRET_BYTES).decode().strip()
        except (OSError, UnicodeDecodeError):
            continue
        if secret:
            secrets.append(secret)
    return tuple(secrets)
