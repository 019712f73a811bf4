"""Releases as Workflows, each started exactly once, even if many callers ask at the same time.

A Workflow's name is derived from the model, the version and the spec, so creating it claims the release: the API server
lets one caller create it and answers the others that it exists (409), which counts as success too. A version that has
the number of a deleted one, whose Workflow still exists, gets a name that is also derived from when it was registered.
A rerun appends the next number to the name and is claimed in the same way. After Argo has removed an old Workflow, the
version's tags in the registry still say that it was released. This class has no state: any number of instances can run
side by side.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime

from shiplift.pipelines.engines.answers import Accepted, WorkflowStatus, final, not_to_decide, waits
from shiplift.pipelines.engines.argo.workflows import (
    CONCLUDE_TEMPLATE,
    CONCLUDED,
    COUNTED,
    MODEL_NAME,
    OF_PUSH,
    OF_REINSTATEMENT,
    OF_RELEASE,
    OF_RETIREMENT,
    PUSH_TEMPLATE,
    REINSTATE_TEMPLATE,
    RELEASE_TEMPLATE,
    RETIRE_TEMPLATE,
    STOPPED_AT,
    STOPPED_BECAUSE,
    Push,
    Run,
    as_parameter,
    counted_mark,
    read,
    seconds,
)
from shiplift.runtime.base.errors import NotFound, SpecInvalid
from shiplift.runtime.base.names import dns_name, push_name, workflow_name
from shiplift.runtime.base.text import printable
from shiplift.runtime.records.decision import Decision
from shiplift.runtime.records.release import ReleaseReport
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.records.retirement import Retiring
from shiplift.runtime.records.site import Site
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.connection import Conflict, Object
from shiplift.runtime.serving.kubernetes.kinds import WORKFLOW, WORKFLOW_TEMPLATE
from shiplift.runtime.serving.kubernetes.objects.names import LABEL
from shiplift.runtime.store.registry.rest import RestRegistry
from shiplift.runtime.store.registry.terms import TAG

# A parameter is copied, escaped, into a pod's arguments and into its template; the kernel allows 128 KiB for each.
MAX_REQUEST_BYTES = 32 * 1024
MANAGED = {"app.kubernetes.io/managed-by": "shiplift"}
_REINSTATE_AGAIN_S = 300
_DECIDED = ("promoted", "refused", "inconclusive", "not admitted")

Tags = Callable[[str, int], Mapping[str, str]]


class ArgoReleases:
    """The releases of a namespace.

    `tags` returns a version's tags in the registry; it is called only if the version has no Workflow. Every method
    raises `Temporary` if the cluster does not answer, and `ClusterRefused` if the templates or permissions are missing.
    """

    def __init__(self, api: KubernetesClient, tags: Tags) -> None:
        self._api = api
        self._tags = tags

    # --- starting ---

    def accept(self, request: Request, trigger: Trigger, *, again: bool = False) -> Accepted:
        """Creates the release of a request, or returns the existing one.

        An ended release runs again if `again` is true, if a person asks for it and the model was not the reason why it
        ended, or if it is triggered by a new commit.

        Raises:
            SpecInvalid: the spec is too large for a Workflow.
        """
        text = as_parameter(request)
        if len(text.encode()) > MAX_REQUEST_BYTES:
            size = f"{len(text.encode())} bytes; the limit on a cluster is {MAX_REQUEST_BYTES}"
            raise SpecInvalid(f"the request with this spec has {size}", do="Shorten the spec; comments count.")
        release, attempts = self._release_of(request)
        active = next((run for run in attempts if run.active), None)
        if active is not None:
            return Accepted(name=active.name, created=False, queued=False)
        if not (again or trigger.allow_older or self._should_start(attempts, request, trigger)):
            return Accepted(name=attempts[-1].name if attempts else release, created=False, queued=False)
        name = _next(release, attempts)
        created = self._create(
            RELEASE_TEMPLATE,
            name,
            {"request": text, "trigger": as_parameter(trigger), "model": dns_name(request.model)},
            labels=_labels(request) | {OF_RELEASE: release},
            notes=_notes(request, trigger),
        )
        return Accepted(name=name, created=created, queued=created)

    def decide(self, request: Request, tags: Mapping[str, str], decision: Decision) -> Accepted:
        """Starts the release of a version that waits for approval again, with a person's decision. The first counts.

        The next Workflow's name claims the decision. `tags` are the version's: Argo may have removed its Workflow.

        Raises:
            NothingToDecide: the version does not wait for approval.
            AlreadyDecided: another person decided before.
        """
        name = f"{request.model}/{request.version}"
        runs = [run for run in self.runs(model=request.model) if run.request and request.same_version(run.request)]
        newest = max(runs, key=lambda run: (run.created_at, run.attempt), default=None)
        if newest and newest.request and newest.trigger:
            waiting, request, before = waits(self.result(newest.name)), newest.request, newest.trigger
        else:
            waiting, before = tags.get(f"{TAG}outcome") == "waiting for approval", Trigger()
        if (newest and newest.active) or not waiting:
            why = "its release is under way" if newest and newest.active else "its release ended in another way"
            raise not_to_decide(name, before.decision, why)
        trigger = before.model_copy(update={"kind": "manual", "decision": decision, "requested_at": time.time()})
        accepted = self.accept(request, trigger, again=True)
        if not accepted.created:
            first = self.get(accepted.name).trigger
            raise not_to_decide(name, first.decision if first else None, "its release is under way")
        return accepted

    def push(self, push: Push) -> Accepted:
        """Starts the Workflow that processes a push, unless one is running or has succeeded."""
        push_id = push_name(push.repository, push.before, push.after)
        attempts = self._attempts(OF_PUSH, push_id)
        existing = next((run for run in attempts if run.active or run.succeeded), None)
        if existing is not None:
            return Accepted(name=existing.name, created=False, queued=False)
        name = _next(push_id, attempts)
        parameters = {"repository": push.repository, "before": push.before, "after": push.after}
        created = self._create(
            PUSH_TEMPLATE, name, parameters, labels={OF_PUSH: push_id}, notes={f"{LABEL}repository": push.repository}
        )
        return Accepted(name=name, created=created, queued=created)

    def reinstate(self, model: str) -> bool:
        """Starts the Workflow that moves a model's aliases back to what production serves; returns whether it did.

        It starts none while one is running, or if one succeeded a moment ago: another would change nothing more.
        """
        name = f"reinstate-{dns_name(model)}"
        attempts = self._attempts(OF_REINSTATEMENT, name)
        last = attempts[-1] if attempts else None
        if last and (last.active or (last.succeeded and time.time() - last.finished_at < _REINSTATE_AGAIN_S)):
            return False
        labels = {OF_REINSTATEMENT: name, f"{LABEL}model": dns_name(model)}
        notes = {MODEL_NAME: model}
        return self._create(REINSTATE_TEMPLATE, _next(name, attempts), {"model": model}, labels=labels, notes=notes)

    def retire(self, model: str, retiring: Retiring) -> bool:
        """Starts the Workflow that retires a model; returns whether it did. It starts none twice for an order."""
        name = f"retire-{dns_name(model)}-{int(retiring.retirement.at)}"
        attempts = self._attempts(OF_RETIREMENT, name)
        if attempts and (attempts[-1].active or attempts[-1].succeeded):
            return False
        labels = {OF_RETIREMENT: name, f"{LABEL}model": dns_name(model)}
        parameters = {"model": model, Retiring.parameter(): as_parameter(retiring)}
        return self._create(
            RETIRE_TEMPLATE, _next(name, attempts), parameters, labels=labels, notes={MODEL_NAME: model}
        )

    def conclude(self, run: Run) -> str:
        """Starts a Workflow that concludes a release whose own exit handler did not run; returns its name."""
        if run.request is None or run.trigger is None:
            raise NotFound(f"{run.name} does not say what it released", do="Delete that Workflow.")
        parameters = {"request": as_parameter(run.request), "trigger": as_parameter(run.trigger), "release": run.name}
        self._create(CONCLUDE_TEMPLATE, concluding(run.name), parameters, labels=_labels(run.request), notes={})
        return concluding(run.name)

    def _release_of(self, request: Request) -> tuple[str, list[Run]]:
        """The name of a request's release, and its attempts so far."""
        name, own_name = _names(request)
        attempts = self._attempts(OF_RELEASE, name)
        if all(run.request is None or request.same_version(run.request) for run in attempts):
            own = self._attempts(OF_RELEASE, own_name) if not attempts and own_name != name else []
            return (own_name, own) if own else (name, attempts)
        return own_name, self._attempts(OF_RELEASE, own_name)

    def _should_start(self, attempts: list[Run], request: Request, trigger: Trigger) -> bool:
        """Whether to start a release; every one of its `attempts` so far has ended."""
        if attempts:
            report = attempts[-1].report
            if trigger.kind == "manual":
                return report is None or not final(report.exit_code)
            commits = {run.trigger.commit for run in attempts if run.trigger}
            return trigger.kind == "git" and trigger.commit not in commits
        tags = self._tags(request.model, request.version)
        recorded, outcome = tags.get(f"{TAG}release", ""), tags.get(f"{TAG}outcome", "")
        if trigger.kind in ("webhook", "sweep"):
            return not recorded
        names = "|".join(map(re.escape, _names(request)))
        same = re.fullmatch(rf"({names})(-[0-9]+)?", recorded) is not None
        if trigger.kind == "git":
            return not (same and tags.get(f"{TAG}commit") == trigger.commit)
        return not (same and outcome in _DECIDED)

    def _attempts(self, label: str, name: str) -> list[Run]:
        runs = map(read, self._api.each(WORKFLOW, f"{label}={name}"))
        return sorted(runs, key=lambda run: (run.attempt, run.created_at))

    def _create(
        self, template: str, name: str, parameters: Mapping[str, str], *, labels: dict[str, str], notes: dict[str, str]
    ) -> bool:
        body: Object = {
            "apiVersion": "argoproj.io/v1alpha1",
            "kind": "Workflow",
            "metadata": {"name": name, "labels": MANAGED | labels, "annotations": notes},
            "spec": {
                "workflowTemplateRef": {"name": template},
                "arguments": {"parameters": [{"name": key, "value": value} for key, value in parameters.items()]},
            },
        }
        try:
            self._api.create(body)
        except Conflict:
            return False
        return True

    # --- finding ---

    def runs(self, *, model: str = "") -> Iterator[Run]:
        """Every release, or every release of a model, that still has a Workflow."""
        return (run for run in self.everything(model=model) if run.template == RELEASE_TEMPLATE)

    def everything(self, *, model: str = "") -> Iterator[Run]:
        """All of Shiplift's Workflows: releases, and those that process pushes or conclude releases."""
        return map(read, self._api.each(WORKFLOW, f"{LABEL}model={dns_name(model)}" if model else ""))

    def active(self, model: str) -> tuple[Run, ...]:
        """A model's releases that have not ended."""
        return tuple(run for run in self.runs(model=model) if run.active)

    def get(self, name: str) -> Run:
        """The Workflow of this name.

        Raises:
            NotFound: there is no such Workflow.
        """
        body = self._api.get(WORKFLOW, name)
        if body is None:
            raise NotFound(
                f"there is no Workflow {name!r}", do="It may have been deleted; see `shiplift status MODEL`."
            )
        return read(body)

    def result(self, name: str) -> ReleaseReport | None:
        """How a release ended; None while it is under way or not yet concluded.

        Raises:
            NotFound: there is no such Workflow.
        """
        report = self.get(name).report
        if report is None:
            conclusion = self._api.get(WORKFLOW, concluding(name))
            report = read(conclusion).report if conclusion else None
        return report

    def installed_at(self) -> float | None:
        """When the pipeline was installed on this cluster, in seconds since the epoch; None if it was not."""
        template = self._api.get(WORKFLOW_TEMPLATE, RELEASE_TEMPLATE)
        return seconds(template["metadata"].get("creationTimestamp")) if template else None

    def site(self) -> Site | None:
        """The site in the installed WorkflowTemplate; None if the pipeline is not installed."""
        template = self._api.get(WORKFLOW_TEMPLATE, RELEASE_TEMPLATE)
        if template is None:
            return None
        parameters = template.get("spec", {}).get("arguments", {}).get("parameters", [])
        values = {parameter["name"]: parameter.get("value", "") for parameter in parameters}
        text = values.get(Site.parameter())
        return Site.model_validate_json(text) if text else None

    # --- ending ---

    def cancel(self, name: str, because: str = "") -> None:
        """Stops a Workflow, whose exit handler then runs; does nothing if it has ended.

        Raises:
            NotFound: there is no such Workflow.
        """
        self._shut_down(name, "Stop", because)

    def terminate(self, name: str, because: str) -> None:
        """Ends a Workflow whose exit handler can't run.

        Raises:
            NotFound: there is no such Workflow.
        """
        self._shut_down(name, "Terminate", because)

    def _shut_down(self, name: str, how: str, because: str) -> None:
        if self.get(name).active:
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            notes = {STOPPED_AT: now} | ({STOPPED_BECAUSE: printable(because, limit=2000)} if because else {})
            self._api.merge(WORKFLOW, name, {"spec": {"shutdown": how}, "metadata": {"annotations": notes}})

    def remove_nodes(self, name: str, nodes: Iterable[str]) -> None:
        """Removes nodes of a Workflow that hang. Argo creates them again once their inputs exist.

        Raises:
            Conflict: Argo has changed the Workflow in the meantime, and may have resumed it.
        """
        body, removed = self._api.get(WORKFLOW, name), set(nodes)
        if body is None:
            return
        patch: Object = dict.fromkeys(removed)
        for key, node in (body.get("status", {}).get("nodes") or {}).items():
            links = {field: node.get(field) or () for field in ("children", "outboundNodes")}
            links = {field: ids for field, ids in links.items() if removed & set(ids)}
            if links and key not in removed:  # Argo waits forever for a listed child that does not exist
                patch[key] = {field: [id_ for id_ in ids if id_ not in removed] for field, ids in links.items()}
        meta = {"resourceVersion": body["metadata"].get("resourceVersion")}
        self._api.merge(WORKFLOW, name, {"metadata": meta, "status": {"nodes": patch}})

    def mark_concluded(self, run: Run) -> None:
        """Marks that the registry knows how a release ended."""
        self._api.merge(WORKFLOW, run.name, {"metadata": {"labels": {CONCLUDED: run.uid or "true"}}})

    def mark_counted(self, run: Run, message: str) -> None:
        """Marks that the metrics count a release. A stopped Workflow also gets the message: Argo does not say why."""
        patch: Object = {"metadata": {"annotations": {COUNTED: counted_mark(run.finished_at)}}}
        if run.shutdown and message:
            patch["status"] = {"message": message}
        self._api.merge(WORKFLOW, run.name, patch)


def status_of(run: Run, now: str = "") -> WorkflowStatus:
    """A release's Workflow in a line. `run` must have a request; `now` says which stages are running."""
    assert run.request is not None  # noqa: S101 - see above
    ended = "" if run.active else "cancelled" if run.shutdown and not run.stopped_because else "failed"
    stopping = "it is being cancelled" if run.active and run.shutdown else ""
    return WorkflowStatus(
        name=run.name,
        model=run.request.model,
        version=run.request.version,
        phase=run.phase or "Pending",
        verdict=str(run.report.verdict) if run.report else "",
        outcome=run.report.outcome if run.report else ended,
        reason=run.report.reason if run.report else run.stopped_because or stopping or run.waiting or now,
    )


def connect(namespace: str, registry: RestRegistry) -> ArgoReleases:
    """The releases of a namespace, with the tags of a registry."""

    def tags(model: str, version: int) -> Mapping[str, str]:
        info = registry.version(model, version)
        return info.tags if info else {}

    return ArgoReleases(KubernetesClient(namespace), tags)


def concluding(name: str) -> str:
    """The name of the Workflow that concludes another."""
    return f"{name}-conclude"


def _names(request: Request) -> tuple[str, str]:
    """The name of a release, and its name if the first belongs to a deleted version of the same number."""
    model, version, spec = request.model, request.version, request.spec
    return workflow_name(model, version, spec), workflow_name(model, version, spec, request.registered_at)


def _next(name: str, attempts: list[Run]) -> str:
    return f"{name}-{attempts[-1].attempt + 1}" if attempts else name


def _labels(request: Request) -> dict[str, str]:
    return {f"{LABEL}model": dns_name(request.model), f"{LABEL}version": str(request.version)}


def _notes(request: Request, trigger: Trigger) -> dict[str, str]:
    notes = {
        MODEL_NAME: request.model,
        f"{LABEL}trigger": trigger.kind,
        f"{LABEL}delivery": trigger.delivery,
        f"{LABEL}commit": trigger.commit,
    }
    return {key: printable(value) for key, value in notes.items() if value}
