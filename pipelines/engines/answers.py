"""What engines answer: records of one shape wherever it runs, so that a command renders them without asking where."""

from typing import Any

from pydantic import Field

from shiplift.runtime.base.errors import by_exit_code
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.serving import Endpoint
from shiplift.runtime.spec.target import Target


class Accepted(Record):
    """A release that exists now; `created` or `queued` say whether this call did something."""

    name: str
    created: bool
    queued: bool


def final(exit_code: int) -> bool:
    """Whether a release ended because of the model itself, so that running it again would change nothing."""
    return exit_code == 0 or by_exit_code(exit_code).about_model


class Answer(Record):
    """What production answered: the version that did, and nested lists of plain values by output."""

    model: str
    version: int
    outputs: dict[str, Any]


# --- places to serve ------------------------------------------------------------------------------------------------


class Entry(Record):
    """A target of the catalogue; `unfit` says why this machine is not it (empty: it is; None: nobody looked)."""

    target: Target
    unfit: str | None = ""


class Catalogue(Record):
    """The catalogue as it is now, and where it is kept. `default_place` is where a target runs that names no nodes."""

    file: str
    entries: tuple[Entry, ...]
    default_place: str = "this machine"


# --- how it stands --------------------------------------------------------------------------------------------------


class Part(Record):
    """One process of the stack."""

    name: str
    running: bool
    pid: int
    memory_mb: float
    address: str


class ModelStatus(Record):
    """A model's aliases; 0: none."""

    model: str
    champion: int
    challenger: int
    previous: int
    latest: int


class StackStatus(Record):
    """The stack and the models of its registry."""

    home: str
    running: bool
    parts: tuple[Part, ...] = ()
    memory_mb: float = 0.0
    models: tuple[ModelStatus, ...] = ()
    releasing: tuple[str, ...] = ()


class VersionStatus(Record):
    """One version and how its release ended."""

    version: int
    aliases: tuple[str, ...]
    outcome: str
    verdict: str
    reason: str
    release: str


class ModelVersions(Record):
    """A model with its versions, newest first."""

    model: str
    serving_name: str
    endpoint: Endpoint
    versions: tuple[VersionStatus, ...]


class WorkflowStatus(Record):
    """One Workflow of a model."""

    name: str
    model: str
    version: int
    phase: str
    verdict: str = ""
    reason: str = ""


class ClusterStatus(Record):
    """The releases of a cluster, newest first, and a model's aliases where one was asked for."""

    namespace: str
    releases: tuple[WorkflowStatus, ...]
    aliases: dict[str, int] = Field(default_factory=dict)


Status = StackStatus | ModelVersions | ClusterStatus
