"""A release's Workflow as the API server has it: read once into a small record, so that hundreds can be looked at.

Whoever made it (the receiver, the command line, `argo submit`, `argo resubmit`), what it releases is in its
parameters, and what came of it in the `release_report` that its exit handler gave.
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
MODEL_NAME = f"{LABEL}model-name"
OF_RELEASE = f"{LABEL}release"
OF_PUSH = f"{LABEL}push"
CONCLUDED = f"{LABEL}concluded"
COUNTED = f"{LABEL}counted"
STOPPED_BECAUSE = f"{LABEL}stopped-because"
STOPPED_AT = f"{LABEL}stopped-at"
_RESUBMITTED = "workflows.argoproj.io/resubmitted-from-workflow"
SUCCEEDED, FAILED, ERROR = "Succeeded", "Failed", "Error"  # the phases in which a Workflow or a node has ended
_MAX_NODES_BYTES = 64 * 2**20
_REPORT = ReleaseReport.parameter()
R = TypeVar("R", bound=Record)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One Workflow; times are seconds since the epoch (0: not yet), `request` and `trigger` None if unreadable.

    `attempt` is the number behind its name: 1, or more for a rerun. `report` is the release's, where one was given.
    `refused_pod` is what the cluster said when it did not let a pod be made, and since when. `hollow` are stages under
    way that have no pod, by the id of their node, and since when: see `_hollow`.
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
    created_at: float
    first_pod_at: float
    finished_at: float
    report: ReleaseReport | None
    concluded: bool
    counted: bool
    stopped_because: str
    stopped_at: float
    refused_pod: tuple[str, float] | None
    hollow: tuple[tuple[str, float], ...] = ()

    @property
    def active(self) -> bool:
        """Whether it has not ended; the exit handler is a part of it."""
        return not ended(self.phase)

    @property
    def succeeded(self) -> bool:
        """Whether every step did."""
        return self.phase == SUCCEEDED


def read(body: Object) -> Run:
    """What a Workflow says."""
    meta, spec, status = body["metadata"], body.get("spec", {}), body.get("status", {})
    labels, notes = meta.get("labels", {}), meta.get("annotations", {})
    given = _parameters(spec.get("arguments", {}))
    found = list(nodes(status))
    report = _report(found)
    finished = status.get("finishedAt") or ""
    return Run(
        name=meta["name"],
        uid=meta.get("uid", ""),
        template=spec.get("workflowTemplateRef", {}).get("name", ""),
        release=labels.get(OF_RELEASE, ""),
        attempt=attempt_of(meta["name"], labels.get(OF_RELEASE) or labels.get(OF_PUSH) or ""),
        phase=status.get("phase", ""),
        shutdown=spec.get("shutdown", ""),
        request=_record(Request, given),
        trigger=_record(Trigger, given),
        created_at=seconds(meta.get("creationTimestamp")),
        first_pod_at=min((seconds(n.get("startedAt")) for n in found if n.get("type") == "Pod"), default=0.0),
        finished_at=seconds(finished),
        report=report,
        concluded=report is not None or _marked_concluded(meta),
        counted=bool(finished) and notes.get(COUNTED) == counted_mark(seconds(finished)),
        stopped_because=notes.get(STOPPED_BECAUSE, ""),
        stopped_at=seconds(notes.get(STOPPED_AT)),
        refused_pod=next(_refused_pods(found), None),
        hollow=tuple(_hollow(status)),
    )


def ended(phase: str | None) -> bool:
    """Whether that is the phase of a Workflow, or a node, which has ended."""
    return phase in (SUCCEEDED, FAILED, ERROR)


def counted_mark(finished_at: float) -> str:
    """What says that the ending at that time is in the metrics: `argo retry` makes another one."""
    return str(int(finished_at))


def attempt_of(name: str, release: str) -> int:
    """The number behind a name: 2 for `release-digits-3-0123456789-2`."""
    number = name.removeprefix(f"{release}-")
    return int(number) if release and re.fullmatch(r"[1-9][0-9]{0,5}", number) else 1


def seconds(time: str | None) -> float:
    """Kubernetes' time as seconds since the epoch; 0 for none."""
    return datetime.fromisoformat(time).timestamp() if time else 0.0


def _parameters(arguments: Mapping[str, Any]) -> dict[str, str]:
    return {one["name"]: str(one.get("value", "")) for one in arguments.get("parameters", [])}


def _record(kind: type[R], given: Mapping[str, str]) -> R | None:
    try:
        return kind.model_validate_json(given.get(kind.parameter(), ""))
    except ValidationError:
        return None  # submitted by hand, and wrongly: its first step says so


def outputs(node: Mapping[str, Any]) -> dict[str, str]:
    """A node's output parameters by name."""
    found = (node.get("outputs") or {}).get("parameters") or []
    return {one["name"]: str(one.get("value") or "") for one in found}


def nodes(status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The nodes; Argo compresses the list of a large Workflow."""
    nodes = status.get("nodes") or {}
    if packed := status.get("compressedNodes"):
        unzip = zlib.decompressobj(wbits=31)
        nodes = json.loads(unzip.decompress(base64.b64decode(packed), _MAX_NODES_BYTES))
    yield from nodes.values()


def _report(nodes: list[Mapping[str, Any]]) -> ReleaseReport | None:
    found = [
        (node.get("finishedAt") or "", str(one["value"]))
        for node in nodes
        for one in (node.get("outputs") or {}).get("parameters", [])
        if one.get("name") == _REPORT and one.get("value")
    ]
    for _, text in sorted(found, reverse=True):
        try:
            return ReleaseReport.model_validate_json(text)
        except ValidationError:
            continue
    return None


def _marked_concluded(meta: Mapping[str, Any]) -> bool:
    """By the label; `argo resubmit` copies it to a Workflow that has concluded nothing yet."""
    labels = meta.get("labels", {})
    mark = labels.get(CONCLUDED, "")
    return mark == meta.get("uid") or (bool(mark) and _RESUBMITTED not in labels)


def _refused_pods(nodes: list[Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    for node in nodes:
        said = str(node.get("message", ""))
        if node.get("type") == "Pod" and node.get("phase") == "Pending" and "exceeded quota" in said:
            yield said, seconds(node.get("startedAt"))


def _hollow(status: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Stages that `argo retry` left under way without a pod.

    Argo 4.0 begins a failed stage again by removing its pods alone. Where the stage takes what a fan-out gave, and the
    fan-out was set back too, neither goes on: the stage can't resolve its inputs, and nobody looks at the fan-out.
    """
    for key, node in (status.get("nodes") or {}).items():
        if node.get("type") == "Retry" and node.get("phase") == "Running" and not node.get("children"):
            yield key, seconds(node.get("startedAt"))


def as_parameter(record: Record) -> str:
    """JSON without `{{`, which Argo would take for an expression: a model's name may be anything."""
    return record.model_dump_json().replace("{{", r"\u007b\u007b")
