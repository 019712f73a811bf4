"""Releases as Workflows: started exactly once, whoever asks and however many ask at once.

A Workflow's name is made of the model, the version and the spec, so creating it is the claim: the API server lets one
caller create it and tells the others that it is there (409), which is a success too. A rerun is the next number behind
that name, claimed in the same way. When Argo has removed an old Workflow, the version's tags in the registry still
say that it was released. Nothing is kept here: any number of these work beside each other.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime

from shiplift.pipelines.engines.answers import Accepted
from shiplift.pipelines.engines.argo.workflows import (
    CONCLUDE_TEMPLATE,
    CONCLUDED,
    COUNTED,
    MODEL_NAME,
    OF_PUSH,
    OF_RELEASE,
    PUSH_TEMPLATE,
    RELEASE_TEMPLATE,
    STOPPED_AT,
    STOPPED_BECAUSE,
    Run,
    as_parameter,
    counted_mark,
    read,
    seconds,
)
from shiplift.pipelines.engines.local.releases import final
from shiplift.runtime.base.errors import NotFound, SpecInvalid
from shiplift.runtime.base.names import dns_name, push_name, workflow_name
from shiplift.runtime.records.release import ReleaseReport
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.connection import Conflict, Object
from shiplift.runtime.serving.kubernetes.kinds import WORKFLOW, WORKFLOW_TEMPLATE
from shiplift.runtime.serving.kubernetes.objects.names import LABEL
from shiplift.runtime.store.registry import TAG
from shiplift.runtime.store.registry_rest import RestRegistry

# A parameter is copied into a pod's arguments and into its template, escaped, and the kernel takes 128 KiB of each.
MAX_REQUEST_BYTES = 32 * 1024
MANAGED = {"app.kubernetes.io/managed-by": "shiplift"}
_DECIDED = ("promoted", "refused", "inconclusive", "not admitted")

Tags = Callable[[str, int], Mapping[str, str]]


class ArgoReleases:
    """The releases of one namespace.

    `tags` gives a version's tags in the registry; it is asked only where no Workflow tells. Every method raises
    `Temporary` where the cluster does not answer, and `ClusterRefused` where it lacks the templates or we the rights.
    """

    def __init__(self, api: KubernetesClient, tags: Tags) -> None:
        self._api = api
        self._tags = tags

    # --- starting ---

    def accept(self, request: Request, trigger: Trigger, *, again: bool = False) -> Accepted:
        """Makes the release of a request, or finds the one there is.

        An ended release runs again if `again` says so, if a person asks and it ended for a reason that was not the
        model's, or if another commit asks for it than those that did.

        Raises:
            SpecInvalid: the spec is too large for a Workflow.
        """
        text = as_parameter(request)
        if len(text.encode()) > MAX_REQUEST_BYTES:
            size = f"{len(text.encode())} bytes, {MAX_REQUEST_BYTES} are allowed on a cluster"
            raise SpecInvalid(f"the spec makes a request of {size}", do="Shorten it; comments count.")
        release = workflow_name(request.model, request.version, request.spec)
        attempts = self._attempts(OF_RELEASE, release)
        going = next((run for run in attempts if run.active), None)
        if going is not None:
            return Accepted(name=going.name, created=False, queued=False)
        if not (again or trigger.allow_older or self._wanted(release, attempts, request, trigger)):
            return Accepted(name=attempts[-1].name if attempts else release, created=False, queued=False)
        name = _next(release, attempts)
        created = self._create(
            RELEASE_TEMPLATE, name,
            {"request": text, "trigger": as_parameter(trigger), "model": dns_name(request.model)},
            labels=_labels(request) | {OF_RELEASE: release}, notes=_notes(request, trigger),
        )  # fmt: skip
        return Accepted(name=name, created=created, queued=created)

    def push(self, repository: str, before: str, after: str) -> Accepted:
        """Starts what looks into a push, unless it is under way or has succeeded."""
        push = push_name(repository, after)
        attempts = self._attempts(OF_PUSH, push)
        there = next((run for run in attempts if run.active or run.succeeded), None)
        if there is not None:
            return Accepted(name=there.name, created=False, queued=False)
        name = _next(push, attempts)
        given = {"repository": repository, "before": before, "after": after}
        created = self._create(
            PUSH_TEMPLATE, name, given, labels={OF_PUSH: push}, notes={f"{LABEL}repository": repository}
        )
        return Accepted(name=name, created=created, queued=created)

    def conclude(self, run: Run) -> str:
        """Starts what tells the registry of a release whose own exit handler did not run; gives its Workflow's name."""
        if run.request is None or run.trigger is None:
            raise NotFound(f"{run.name} says not what it released", do="Delete that Workflow.")
        given = {"request": as_parameter(run.request), "trigger": as_parameter(run.trigger), "release": run.name}
        self._create(CONCLUDE_TEMPLATE, concluding(run.name), given, labels=_labels(run.request), notes={})
        return concluding(run.name)

    def _wanted(self, release: str, attempts: list[Run], request: Request, trigger: Trigger) -> bool:
        """Whether a request that nobody works on should be; `attempts` have ended."""
        if attempts:
            report = attempts[-1].report
            if trigger.kind == "manual":
                return report is None or not final(report.exit_code)
            asked = {run.trigger.commit for run in attempts if run.trigger}
            return trigger.kind == "git" and trigger.commit not in asked
        tags = self._tags(request.model, request.version)
        told, outcome = tags.get(f"{TAG}release", ""), tags.get(f"{TAG}outcome", "")
        if trigger.kind in ("webhook", "sweep"):
            return not told
        same = re.fullmatch(rf"{re.escape(release)}(-[0-9]+)?", told) is not None
        if trigger.kind == "git":
            return not (same and tags.get(f"{TAG}commit") == trigger.commit)
        return not (same and outcome in _DECIDED)

    def _attempts(self, label: str, name: str) -> list[Run]:
        found = map(read, self._api.each(WORKFLOW, f"{label}={name}"))
        return sorted(found, key=lambda run: (run.attempt, run.created_at))

    def _create(
        self, template: str, name: str, given: Mapping[str, str], *, labels: dict[str, str], notes: dict[str, str]
    ) -> bool:
        body: Object = {
            "apiVersion": "argoproj.io/v1alpha1",
            "kind": "Workflow",
            "metadata": {"name": name, "labels": MANAGED | labels, "annotations": notes},
            "spec": {
                "workflowTemplateRef": {"name": template},
                "arguments": {"parameters": [{"name": key, "value": value} for key, value in given.items()]},
            },
        }
        try:
            self._api.create(body)
        except Conflict:
            return False
        return True

    # --- finding ---

    def runs(self, *, model: str = "") -> Iterator[Run]:
        """Every release there still is a Workflow of, or a model's."""
        return (run for run in self.everything(model=model) if run.template == RELEASE_TEMPLATE)

    def everything(self, *, model: str = "") -> Iterator[Run]:
        """The same, and the Workflows that look into pushes and conclude releases."""
        return map(read, self._api.each(WORKFLOW, f"{LABEL}model={dns_name(model)}" if model else ""))

    def active(self, model: str) -> tuple[Run, ...]:
        """A model's releases that have not ended."""
        return tuple(run for run in self.runs(model=model) if run.active)

    def get(self, name: str) -> Run:
        """One release.

        Raises:
            NotFound: there is no such Workflow.
        """
        body = self._api.get(WORKFLOW, name)
        if body is None:
            raise NotFound(
                f"there is no Workflow {name!r}", do="It may have been removed; see `shiplift status MODEL`."
            )
        return read(body)

    def result(self, name: str) -> ReleaseReport | None:
        """How a release ended; None while it has not, or where nothing was told yet.

        Raises:
            NotFound: there is no such Workflow.
        """
        report = self.get(name).report
        if report is None:
            later = self._api.get(WORKFLOW, concluding(name))
            report = read(later).report if later else None
        return report

    def installed_at(self) -> float | None:
        """When the pipeline came to this cluster, in seconds since the epoch; None: it is not there."""
        template = self._api.get(WORKFLOW_TEMPLATE, RELEASE_TEMPLATE)
        return seconds(template["metadata"].get("creationTimestamp")) if template else None

    # --- ending ---

    def cancel(self, name: str, because: str = "") -> None:
        """Stops a Workflow and lets its exit handler run; an ended one stays as it is.

        Raises:
            NotFound: there is no such Workflow.
        """
        self._shut(name, "Stop", because)

    def terminate(self, name: str, because: str) -> None:
        """Ends a Workflow whose exit handler can't run either.

        Raises:
            NotFound: there is no such Workflow.
        """
        self._shut(name, "Terminate", because)

    def _shut(self, name: str, how: str, because: str) -> None:
        if self.get(name).active:
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            notes = {STOPPED_AT: now} | ({STOPPED_BECAUSE: because[:2000]} if because else {})
            self._api.merge(WORKFLOW, name, {"spec": {"shutdown": how}, "metadata": {"annotations": notes}})

    def forget(self, name: str, nodes: Iterable[str]) -> None:
        """Removes nodes of a Workflow that Argo can't go on with; it makes them anew once what they need is there.

        Raises:
            Conflict: Argo wrote meanwhile, and may have gone on.
        """
        body, gone = self._api.get(WORKFLOW, name), set(nodes)
        if body is None:
            return
        patch: Object = dict.fromkeys(gone)
        for key, node in (body.get("status", {}).get("nodes") or {}).items():
            named = {field: node[field] for field in ("children", "outboundNodes") if gone & set(node.get(field) or ())}
            if named and key not in gone:  # Argo waits for ever for a child that is named and not there
                patch[key] = {field: [one for one in ids if one not in gone] for field, ids in named.items()}
        meta = {"resourceVersion": body["metadata"].get("resourceVersion")}
        self._api.merge(WORKFLOW, name, {"metadata": meta, "status": {"nodes": patch}})

    def mark_concluded(self, run: Run) -> None:
        """Notes that the registry knows how a release ended."""
        self._api.merge(WORKFLOW, run.name, {"metadata": {"labels": {CONCLUDED: run.uid or "true"}}})

    def mark_counted(self, run: Run) -> None:
        """Notes that a release is in the metrics."""
        mark = {COUNTED: counted_mark(run.finished_at)}
        self._api.merge(WORKFLOW, run.name, {"metadata": {"annotations": mark}})


def connect(namespace: str, registry: RestRegistry) -> ArgoReleases:
    """The releases of a namespace, with the registry that keeps their tags."""

    def tags(model: str, version: int) -> Mapping[str, str]:
        info = registry.version(model, version)
        return info.tags if info else {}

    return ArgoReleases(KubernetesClient(namespace), tags)


def concluding(name: str) -> str:
    """The name of the Workflow that concludes another."""
    return f"{name}-conclude"


def _next(name: str, attempts: list[Run]) -> str:
    return f"{name}-{attempts[-1].attempt + 1}" if attempts else name


def _labels(request: Request) -> dict[str, str]:
    return {f"{LABEL}model": dns_name(request.model), f"{LABEL}version": str(request.version)}


def _notes(request: Request, trigger: Trigger) -> dict[str, str]:
    given = {
        MODEL_NAME: request.model, f"{LABEL}trigger": trigger.kind, f"{LABEL}delivery": trigger.delivery,
        f"{LABEL}commit": trigger.commit,
    }  # fmt: skip
    return {key: value for key, value in given.items() if value}
