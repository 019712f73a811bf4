"""A release's Workflow, read from the API server into a small record, so that hundreds can be handled at once.

However it was created (by the receiver, the command line, `argo submit`, `argo resubmit`), its parameters say what it
releases, and its exit handler's `release_report` says how it ended.
"""

import base64
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from pydantic import ValidationError

from shiplift.runtime.records.base import Record
from shiplift.runtime.records.release import ReleaseReport
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.serving.kubernetes.connection import Object
from shiplift.runtime.serving.kubernetes.objects.names import LABEL

RELEASE_TEMPLATE, PUSH_TEMPLATE, CONCLUDE_TEMPLATE = "release", "git-push", "conclude"
RETIRE_TEMPLATE = "retire"
REINSTATE_TEMPLATE = "reinstate"  # the stage's name, written out because importing the stage loads Triton's client
MODEL_NAME = f"{LABEL}model-name"
OF_RELEASE = f"{LABEL}release"
OF_PUSH = f"{LABEL}push"
OF_REINSTATEMENT = f"{LABEL}reinstatement"
OF_RETIREMENT = f"{LABEL}retirement"
CONCLUDED = f"{LABEL}concluded"
COUNTED = f"{LABEL}counted"
STOPPED_BECAUSE = f"{LABEL}stopped-because"
ABORTED = f"{LABEL}aborted"  # who aborted the release, and why, as JSON
STOPPED_AT = f"{LABEL}stopped-at"
SHIELDED = f"{LABEL}shielded"
_RESUBMITTED = "workflows.argoproj.io/resubmitted-from-workflow"
SUCCEEDED, FAILED, ERROR = "Succeeded", "Failed", "Error"  # the phases of an ended Workflow or node
LATE = "longer than the specified deadline"  # part of a pod's message if Kubernetes ended it at its deadline
_STARTING = ("PodInitializing", "ContainerCreating")
_MAX_NODES_BYTES = 64 * 2**20
_REPORT = ReleaseReport.parameter()
R = TypeVar("R", bound=Record)


@dataclass(frozen=True, kw_only=True)
class Push:
    """New commits on a branch that releases models; `before` is all zeros for a new branch."""

    repository: str
    before: str
    after: str


@dataclass(frozen=True, kw_only=True)
class Run:
    """A Workflow. Times are in seconds since the epoch (0: not yet); `request` and `trigger` are None if unreadable.

    `push` is what a Workflow of `git-push` processes; None for others.

    `attempt` is the number at the end of its name: 1, or more for a rerun. `report` is the release's, if it has ended.
    `refused_pod` is the cluster's message if it refuses to create a pod, and since when. `podless` lists running stages
    that have no pod, by the id of their node, and since when: see `_podless`. `waiting` says what a pod that can't
    start is waiting for.
    """

    name: str
    uid: str
    template: str
    release: str
    attempt: int
    phase: str
    shutdown: str
    request: Request | None
    trigger: Trigger | None
    push: Push | None
    created_at: float
    first_pod_at: float
    finished_at: float
    report: ReleaseReport | None
    concluded: bool
    counted: bool
    stopped_because: str
    stopped_at: float
    refused_pod: tuple[str, float] | None
    podless: tuple[tuple[str, float], ...] = ()
    waiting: str = ""

    @property
    def active(self) -> bool:
        """Whether it has not ended. A Workflow ends after its exit handler."""
        return not ended(self.phase)

    @property
    def succeeded(self) -> bool:
        """Whether every step succeeded."""
        return self.phase == SUCCEEDED


def read(body: Object) -> Run:
    """A Workflow from the API server's object."""
    meta, spec, status = body["metadata"], body.get("spec", {}), body.get("status", {})
    labels, notes = meta.get("labels", {}), meta.get("annotations", {})
    parameters = _parameters(spec.get("arguments", {}))
    steps = list(nodes(status))
    report = _report(steps)
    finished = status.get("finishedAt") or ""
    template = spec.get("workflowTemplateRef", {}).get("name", "")
    return Run(
        name=meta["name"],
        uid=meta.get("uid", ""),
        template=template,
        release=labels.get(OF_RELEASE, ""),
        attempt=attempt_of(meta["name"], _first(labels, OF_RELEASE, OF_PUSH, OF_REINSTATEMENT, OF_RETIREMENT)),
        phase=status.get("phase", ""),
        shutdown=spec.get("shutdown", ""),
        request=_record(Request, parameters),
        trigger=_record(Trigger, parameters),
        push=_push(parameters) if template == PUSH_TEMPLATE else None,
        created_at=seconds(meta.get("creationTimestamp")),
        first_pod_at=min((seconds(n.get("startedAt")) for n in steps if n.get("type") == "Pod"), default=0.0),
        finished_at=seconds(finished),
        report=report,
        concluded=report is not None or _marked_concluded(meta),
        counted=bool(finished) and notes.get(COUNTED) == counted_mark(seconds(finished)),
        stopped_because=notes.get(STOPPED_BECAUSE, ""),
        stopped_at=seconds(notes.get(STOPPED_AT)),
        refused_pod=next(_refused_pods(steps), None),
        podless=tuple(_podless(status)),
        waiting=next(filter(None, map(waiting_for, steps)), ""),
    )


def _first(labels: Mapping[str, str], *names: str) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")


def ended(phase: str | None) -> bool:
    """Whether a Workflow or node in this phase has ended."""
    return phase in (SUCCEEDED, FAILED, ERROR)


def counted_mark(finished_at: float) -> str:
    """The mark that the metrics include this ending. It is the time: after `argo retry`, a Workflow ends again."""
    return str(int(finished_at))


def attempt_of(name: str, release: str) -> int:
    """The number at the end of a name: 2 for `release-digits-3-0123456789-2`."""
    number = name.removeprefix(f"{release}-")
    return int(number) if release and re.fullmatch(r"[1-9][0-9]{0,5}", number) else 1


def seconds(time: str | None) -> float:
    """A Kubernetes time in seconds since the epoch; 0 for None."""
    return datetime.fromisoformat(time).timestamp() if time else 0.0


def _parameters(arguments: Mapping[str, Any]) -> dict[str, str]:
    return {item["name"]: str(item.get("value", "")) for item in arguments.get("parameters", [])}


def _record(kind: type[R], parameters: Mapping[str, str]) -> R | None:
    try:
        return kind.model_validate_json(parameters.get(kind.parameter(), ""))
    except ValidationError:
        return None  # submitted by hand with wrong parameters: its first stage reports that


def _push(parameters: Mapping[str, str]) -> Push:
    repository, before, after = (parameters.get(name, "") for name in ("repository", "before", "after"))
    return Push(repository=repository, before=before, after=after)


def outputs(node: Mapping[str, Any]) -> dict[str, str]:
    """A node's output parameters by name."""
    parameters = (node.get("outputs") or {}).get("parameters") or []
    return {item["name"]: str(item.get("value") or "") for item in parameters}


def nodes(status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The nodes in a Workflow's status. Argo compresses them if there are many."""
    nodes = status.get("nodes") or {}
    if packed := status.get("compressedNodes"):
        unzip = zlib.decompressobj(wbits=31)
        nodes = json.loads(unzip.decompress(base64.b64decode(packed), _MAX_NODES_BYTES))
    yield from nodes.values()


def _report(nodes: list[Mapping[str, Any]]) -> ReleaseReport | None:
    reports = [
        (node.get("finishedAt") or "", str(output["value"]))
        for node in nodes
        for output in (node.get("outputs") or {}).get("parameters", [])
        if output.get("name") == _REPORT and output.get("value")
    ]
    for _, text in sorted(reports, reverse=True):
        try:
            return ReleaseReport.model_validate_json(text)
        except ValidationError:
            continue
    return None


def _marked_concluded(meta: Mapping[str, Any]) -> bool:
    """Whether the label marks this Workflow as concluded. Ignores a mark that `argo resubmit` copied from another."""
    labels = meta.get("labels", {})
    mark = labels.get(CONCLUDED, "")
    return mark == meta.get("uid") or (bool(mark) and _RESUBMITTED not in labels)


def waiting_for(node: Mapping[str, Any]) -> str:
    """What a stage's pod is waiting for, such as `Pending: Insufficient cpu`; empty if it is simply starting."""
    message = " ".join(str(node.get("message") or "").split())
    if node.get("type") != "Pod" or node.get("phase") != "Pending" or not message or message.split(":")[0] in _STARTING:
        return ""
    return f"Pending: {message}"


def _refused_pods(nodes: list[Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    for node in nodes:
        message = str(node.get("message", ""))
        if node.get("type") == "Pod" and node.get("phase") == "Pending" and "exceeded quota" in message:
            yield message, seconds(node.get("startedAt"))


def _podless(status: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Stages that `argo retry` left running without a pod.

    Argo 4.0 restarts a failed stage by removing only its pods. If the stage takes the output of a fan-out that was
    reset too, both hang: the stage can't resolve its inputs, and Argo never looks at the fan-out again.
    """
    for key, node in (status.get("nodes") or {}).items():
        if node.get("type") == "Retry" and node.get("phase") == "Running" and not node.get("children"):
            yield key, seconds(node.get("startedAt"))


def as_parameter(record: Record) -> str:
    """JSON without `{{`, which Argo would evaluate as an expression: a model's name may contain anything."""
    return record.model_dump_json().replace("{{", r"\u007b\u007b")
