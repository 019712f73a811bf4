"""The records that engines return: the same for every engine, so that a command renders them alike."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from shiplift.pipelines.engines.pace import in_words
from shiplift.runtime.base.errors import (
    Aborted,
    AlreadyDecided,
    AwaitingApproval,
    NothingToAbort,
    NothingToDecide,
    PolicyRefused,
    ShipliftError,
    StillInUse,
    by_exit_code,
)
from shiplift.runtime.gates.approval import allowed
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.decision import Decision
from shiplift.runtime.records.deployment import Endpoint
from shiplift.runtime.records.promotion import AliasDrift
from shiplift.runtime.records.proof import ServedProof
from shiplift.runtime.records.release import ReleaseReport, StageRun
from shiplift.runtime.records.site import Site
from shiplift.runtime.spec.target import Target
from shiplift.runtime.store.registry.terms import CHAMPION


class Accepted(Record):
    """An accepted release; `created` and `queued` say whether this call created or queued it."""

    name: str
    created: bool
    queued: bool


def final(exit_code: int) -> bool:
    """Whether a release ended because of the model itself, so that running it again would change nothing."""
    return exit_code == 0 or by_exit_code(exit_code).about_model


def waits(report: ReleaseReport | None) -> bool:
    """Whether a release ended because its version waits for a person's approval."""
    return report is not None and report.exit_code == AwaitingApproval.exit_code


def not_to_decide(name: str, decided: Decision | None, why: str) -> ShipliftError:
    """Why nobody can decide about a version: another person did, or it does not wait."""
    if decided:
        return AlreadyDecided(f"{name} was already {decided.sentence}", do="See `shiplift status` for what followed.")
    return NothingToDecide(f"{name} does not wait for approval: {why}", do="See `shiplift status`.")


def require_approver(site: Site, decision: Decision) -> None:
    """Checks that the site's policy lets a person decide.

    Raises:
        PolicyRefused: it does not.
    """
    if not allowed(decision.by, site.policy):
        raise PolicyRefused(
            f"{decision.by} may not approve or reject a version, only {', '.join(site.policy.approvers)}",
            do="Ask one of them, or the owner of this site to change `policy.approvers` (site.yaml, or the values).",
        )


def still_releasing(model: str, names: Sequence[str]) -> StillInUse:
    """Why a model can't be retired while releases of it are under way."""
    what = f"release {names[0]}" if len(names) == 1 else f"{len(names)} releases, among them {names[0]},"
    return StillInUse(
        f"{what} of {model!r} {'is' if len(names) == 1 else 'are'} under way",
        do=f"`shiplift abort {model}` ends what has begun, `--force` ends all of them.",
    )


class AbortedRelease(Record):
    """A release that a person aborted. `champion` is the version that serves (0: none); `message` says who, and why."""

    model: str
    version: int
    release: str
    champion: int
    message: str


def aborted_release(report: ReleaseReport | None, model: str, champion: int) -> AbortedRelease:
    """The answer to an order to abort, once the release has ended.

    Raises:
        NothingToAbort: it ended in another way before.
    """
    if report and report.exit_code == Aborted.exit_code:
        message = report.failure.what if report.failure else report.reason
        return AbortedRelease(
            model=model, version=report.version, release=report.release, champion=champion, message=message
        )
    if report and report.alias:
        raise NothingToAbort(
            f"version {report.version} of {model!r} was promoted before it could be aborted",
            do=f"`shiplift rollback {model}` makes the previous champion serve again.",
        )
    how = f"the release ended by itself: {report.message}" if report else "the release was cancelled before it began"
    raise NothingToAbort(how, do="The champion serves, as before.")


def already_aborted(newest: ReleaseReport | None, model: str, champion: int, *, waiting: bool) -> AbortedRelease:
    """The answer if no release of a model has begun: the last one was aborted, and is only once.

    Raises:
        NothingToAbort: it was not.
    """
    if waiting:
        raise NothingToAbort(
            f"no release of {model!r} has begun; at least one waits in the queue",
            do="`shiplift cancel MODEL/VERSION` takes it off the queue.",
        )
    if newest is None or newest.exit_code != Aborted.exit_code:
        do = f"`shiplift rollback {model}` undoes a finished promotion."
        raise NothingToAbort(f"no release of {model!r} is under way", do=do)
    return aborted_release(newest, model, champion)


class Prediction(Record):
    """Production's answer: the version that answered, and nested lists of plain values by output."""

    model: str
    version: int
    outputs: dict[str, Any]


# --- targets ------------------------------------------------------------------------------------------------


class CatalogueEntry(Record):
    """A target of the catalogue; `unfit` says why this machine does not fit it (empty: it fits; None: not checked)."""

    target: Target
    unfit: str | None = ""


class Catalogue(Record):
    """The catalogue and its file. `default_place` is where a target runs that names no nodes."""

    file: str
    entries: tuple[CatalogueEntry, ...]
    default_place: str = "this machine"


# --- status --------------------------------------------------------------------------------------------------


class StackProcess(Record):
    """A process of the stack."""

    name: str
    running: bool
    pid: int
    memory_mb: float
    address: str


def champion_drift(model: str, served: int, aliases: Mapping[str, int]) -> str:
    """Says so if `champion` does not name the version that production serves (0: it serves none); else empty."""
    named = aliases.get(CHAMPION, 0)
    if not served or served == named:
        return ""
    sentence = AliasDrift(model=model, alias=CHAMPION, named=named, version=served).sentence
    return f"{sentence}; it will be moved back if the registry still has that version"


class ModelStatus(Record):
    """A model's champion, which is what production serves, and its other aliases; 0: none.

    `drift` is set if the alias `champion` names another version, `baking` says how far the
    champion's bake is (empty: it does not bake). `verified_at` is when production last answered a golden request
    correctly, in seconds since the epoch (0: never), and `finding` what has gone wrong since. `data_drift` is how its
    requests and answers drifted from its validation data (empty: not, as far as known).
    """

    model: str
    champion: int
    challenger: int
    previous: int
    latest: int
    drift: str = ""
    verified_at: float = 0.0
    finding: str = ""
    baking: str = ""
    data_drift: str = ""


class Incident(Record):
    """What the watchdog noticed and did. `at` is in seconds since the epoch, `model` is the model's served name."""

    at: float
    model: str
    event: str


class UnderWay(Record):
    """A release that has not ended: its current stage and for how many seconds, or its place in the queue, from 1.

    A release that has begun, but not yet its first stage, has neither. `left_s` is how many seconds it will still take,
    as earlier releases of the model took; None if there is no telling. `stages` are those that have begun, with when.
    """

    release: str
    model: str
    version: int
    stage: str = ""
    target: str = ""
    seconds: float = 0.0
    place: int = 0
    left_s: float | None = None
    stages: tuple[StageRun, ...] = ()

    def __str__(self) -> str:
        if self.place:
            return f"queued, place {self.place}"
        target = f" for {self.target}" if self.target else ""
        left = "" if self.left_s is None else f"; {in_words(self.left_s)} left"
        return f"releasing: {self.stage}{target}, {self.seconds:.0f} s{left}" if self.stage else "releasing"


class StackStatus(Record):
    """The status of the stack and of the models in its registry."""

    home: str
    running: bool
    parts: tuple[StackProcess, ...] = ()
    memory_mb: float = 0.0
    models: tuple[ModelStatus, ...] = ()
    releasing: tuple[UnderWay, ...] = ()
    incidents: tuple[Incident, ...] = ()


class VersionStatus(Record):
    """A version and how its newest release ended; `under_way` is a release that is still running or queued."""

    version: int
    aliases: tuple[str, ...]
    outcome: str
    verdict: str
    reason: str
    release: str
    under_way: UnderWay | None = None


class ModelVersions(Record):
    """A model with its versions, newest first. `proof` is what the server of the served one was asked, if it was.

    `idle` says why the served one's configuration doesn't use all cores, if it doesn't.
    """

    model: str
    serving_name: str
    endpoint: Endpoint
    drift: str = ""
    verified_at: float = 0.0
    finding: str = ""
    baking: str = ""
    data_drift: str = ""
    proof: ServedProof | None = None
    idle: str = ""
    versions: tuple[VersionStatus, ...]


class WorkflowStatus(Record):
    """A release on a cluster. `phase` is its Workflow's; empty if Argo has removed that and only the registry knows it.

    `outcome` says in words how the release ended; empty if it has not.
    """

    name: str
    model: str
    version: int
    phase: str = ""
    verdict: str = ""
    outcome: str = ""
    reason: str = ""


class ServiceSummary(Record):
    """What serves a model on a cluster, as the operator last saw it.

    `state` is Ready, Stalled, Reconciling, or Unknown if the operator has not seen the newest spec; `reason` and
    `message` say why. `weights` are the shares of traffic in percent, by revision. If several targets serve, `targets`
    lists them with their shares. `baking` says how far the bake of what serves is (empty: it does not bake).
    """

    model: str
    state: str
    reason: str = ""
    message: str = ""
    revision: str = ""
    version: int = 0
    weights: dict[str, int] = Field(default_factory=dict)
    ready_pods: int = 0
    pods: int = 0
    targets: str = ""
    baking: str = ""


class ClusterStatus(Record):
    """What serves on a cluster, its releases, newest first, and the aliases of the model, if one was asked for.

    Releases whose Workflows are gone come last, by version; `note` says why the list may be incomplete.
    """

    namespace: str
    services: tuple[ServiceSummary, ...] = ()
    releases: tuple[WorkflowStatus, ...]
    aliases: dict[str, int] = Field(default_factory=dict)
    drift: str = ""
    note: str = ""


Status = StackStatus | ModelVersions | ClusterStatus
