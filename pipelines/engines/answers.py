"""The records that engines return: the same for every engine, so that a command renders them alike."""

from typing import Any

from pydantic import Field

from shiplift.runtime.base.errors import by_exit_code
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.serving import Endpoint
from shiplift.runtime.spec.target import Target


class Accepted(Record):
    """An accepted release; `created` and `queued` say whether this call created or queued it."""

    name: str
    created: bool
    queued: bool


def final(exit_code: int) -> bool:
    """Whether a release ended because of the model itself, so that running it again would change nothing."""
    return exit_code == 0 or by_exit_code(exit_code).about_model


class Answer(Record):
    """Production's answer: the version that answered, and nested lists of plain values by output."""

    model: str
    version: int
    outputs: dict[str, Any]


# --- targets ------------------------------------------------------------------------------------------------


class Entry(Record):
    """A target of the catalogue; `unfit` says why this machine does not fit it (empty: it fits; None: not checked)."""

    target: Target
    unfit: str | None = ""


class Catalogue(Record):
    """The catalogue and the file that holds it. `default_place` is where a target without nodes runs."""

    file: str
    entries: tuple[Entry, ...]
    default_place: str = "this machine"


# --- status --------------------------------------------------------------------------------------------------


class Part(Record):
    """A process of the stack."""

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
    """The status of the stack and of the models in its registry."""

    home: str
    running: bool
    parts: tuple[Part, ...] = ()
    memory_mb: float = 0.0
    models: tuple[ModelStatus, ...] = ()
    releasing: tuple[str, ...] = ()


class VersionStatus(Record):
    """A version and how its release ended."""

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
    """A release's Workflow."""

    name: str
    model: str
    version: int
    phase: str
    verdict: str = ""
    reason: str = ""


class ClusterStatus(Record):
    """The releases of a cluster, newest first, and the aliases of the model, if one is named."""

    namespace: str
    releases: tuple[WorkflowStatus, ...]
    aliases: dict[str, int] = Field(default_factory=dict)


Status = StackStatus | ModelVersions | ClusterStatus
