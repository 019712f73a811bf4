"""What the command line asks of a cluster: order, watch, cancel, roll back, list.

It needs a kubeconfig and nothing else: the registry inside is asked through the API server's service proxy.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import Field

from shiplift.pipelines.engines.argo.ending import attempts, stage_run, under_way
from shiplift.pipelines.engines.argo.releases import MANAGED, ArgoReleases
from shiplift.pipelines.engines.argo.workflows import RELEASE_TEMPLATE, ended, nodes, outputs
from shiplift.pipelines.engines.local.engine import split
from shiplift.pipelines.engines.local.releases import Accepted
from shiplift.pipelines.release import RELEASE, ROLLBACK
from shiplift.runtime.base.errors import ClusterRefused, NotFound, Temporary
from shiplift.runtime.base.names import dns_name
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.failure import Failure
from shiplift.runtime.records.release import Event, ReleaseReport
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.records.serving import Promotion
from shiplift.runtime.records.site import Site
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.connection import Object
from shiplift.runtime.serving.kubernetes.kinds import WORKFLOW, WORKFLOW_TEMPLATE
from shiplift.runtime.spec.document import parse
from shiplift.runtime.store.registry import TAG, check_name

_POLL_S = 0.5
_ROLLBACK_S = 600


class RemoteRelease(Record):
    """One Workflow of a model."""

    name: str
    model: str
    version: int
    phase: str
    verdict: str = ""
    reason: str = ""


class RemoteStatus(Record):
    """The releases of a cluster, newest first, and a model's aliases where one was asked for."""

    namespace: str
    releases: tuple[RemoteRelease, ...]
    aliases: dict[str, int] = Field(default_factory=dict)


@dataclass(frozen=True)
class Remote:
    """Shiplift in one namespace of the cluster that KUBECONFIG names."""

    namespace: str

    @cached_property
    def api(self) -> KubernetesClient:
        """The cluster."""
        return KubernetesClient(self.namespace)

    @cached_property
    def releases(self) -> ArgoReleases:
        """Its releases."""
        return ArgoReleases(self.api, self._tags)

    @cached_property
    def site(self) -> Site:
        """The site that its templates run with.

        Raises:
            ClusterRefused: Shiplift is not installed there.
        """
        template = self.api.get(WORKFLOW_TEMPLATE, RELEASE_TEMPLATE)
        if template is None:
            raise ClusterRefused(
                f"Shiplift is not installed in namespace {self.namespace!r}",
                do="Run `shiplift install`, or name the right one with --namespace.",
            )
        given = {one["name"]: one.get("value", "") for one in template["spec"]["arguments"]["parameters"]}
        return Site.model_validate_json(given[Site.parameter()])

    def order(self, name: str, spec: str, *, again: bool, allow_older: bool) -> Accepted:
        """Orders a release of a version, or of a model's newest one.

        Raises:
            NotFound: the registry has no such version.
            SpecInvalid: the spec given by hand is wrong.
        """
        parse(spec)
        model, version = split(name)
        found = self._version(model, version) if version else self._newest(model)
        trigger = Trigger(kind="manual", requested_at=time.time(), allow_older=allow_older)
        return self.releases.accept(Request(model=model, version=found, spec=spec), trigger, again=again)

    def cancel(self, model: str, version: int) -> str:
        """Stops a version's release under way, and waits for its last stage; gives its name, empty: there was none."""
        for run in self.releases.active(model):
            if run.request is not None and (run.request.model, run.request.version) == (model, version):
                self.releases.cancel(run.name)
                for _ in self.events(run.name):
                    pass
                return run.name
        return ""

    def rollback(self, model: str) -> Promotion:
        """Makes the previous champion serve again.

        Raises:
            NothingToRollBack, CanaryFailed, ServerFailed, ...: as the step says.
        """
        made = self.api.create(_rollback(check_name(model)))
        name = made["metadata"]["name"]
        deadline = time.monotonic() + _ROLLBACK_S
        while time.monotonic() < deadline:
            body = self._workflow(name)
            if _ended(body):
                return _promotion(body)
            time.sleep(_POLL_S)
        raise Temporary(f"rollback {name} takes over {_ROLLBACK_S} s", do=f"Look at it with `argo get {name}`.")

    def events(self, name: str) -> Iterator[Event | None]:
        """What happens in a release until it has ended, as engine 1 would tell it."""
        told: dict[tuple[str, str], str] = {}
        while True:
            body = self._workflow(name)
            yield from _news(body, told)
            if _ended(body):
                return
            yield None
            time.sleep(_POLL_S)

    def result(self, name: str) -> ReleaseReport:
        """How an ended release ended.

        Raises:
            NotFound: nobody told; its nodes may.
        """
        report = self.releases.result(name)
        if report is None:
            raise NotFound(
                f"release {name} left no report", do=f"Look at it with `argo get -n {self.namespace} {name}`."
            )
        return report

    def status(self, model: str | None) -> RemoteStatus:
        """The releases there still are Workflows of, newest first."""
        runs = sorted(self.releases.runs(model=model or ""), key=lambda run: run.created_at, reverse=True)
        shown = tuple(
            RemoteRelease(
                name=run.name, model=run.request.model, version=run.request.version, phase=run.phase or "Pending",
                verdict=str(run.report.verdict) if run.report else "", reason=run.report.reason if run.report else "",
            )
            for run in runs if run.request
        )  # fmt: skip
        return RemoteStatus(namespace=self.namespace, releases=shown, aliases=self._aliases(model) if model else {})

    # --- the registry, through the API server ---

    def _ask(self, path: str, **query: str) -> dict[str, Any] | None:
        return self.api.proxied(self.site.registry_uri, f"/api/2.0/mlflow/{path}", query)

    def _version(self, model: str, version: int) -> int:
        if self._ask("model-versions/get", name=model, version=str(version)) is None:
            raise NotFound(f"the registry has no version {version} of {model!r}", do="See `shiplift status`.")
        return version

    def _newest(self, model: str) -> int:
        said = self._ask("registered-models/get", name=model) or {}
        versions = [int(one["version"]) for one in said.get("registered_model", {}).get("latest_versions", [])]
        if not versions:
            raise NotFound(f"the registry has no versions of model {model!r}", do="Register one, or mend the name.")
        return max(versions)

    def _aliases(self, model: str) -> dict[str, int]:
        said = self._ask("registered-models/get", name=model) or {}
        found = said.get("registered_model", {}).get("aliases", [])
        return {str(one["alias"]): int(one["version"]) for one in found}

    def _tags(self, model: str, version: int) -> Mapping[str, str]:
        said = self._ask("model-versions/get", name=model, version=str(version)) or {}
        tags = said.get("model_version", {}).get("tags", [])
        return {str(tag["key"]): str(tag.get("value", "")) for tag in tags if str(tag["key"]).startswith(TAG)}

    def _workflow(self, name: str) -> Object:
        body = self.api.get(WORKFLOW, name)
        if body is None:
            raise NotFound(f"there is no Workflow {name!r} in {self.namespace}", do="It may have been deleted.")
        return body


def _rollback(model: str) -> Object:
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"generateName": f"rollback-{dns_name(model)}-", "labels": MANAGED},
        "spec": {
            "workflowTemplateRef": {"name": ROLLBACK.name},
            "arguments": {"parameters": [{"name": "model", "value": model}]},
        },
    }


def _promotion(body: Object) -> Promotion:
    for node in nodes(body["status"]):
        given = outputs(node)
        if text := given.get(Promotion.parameter()):
            return Promotion.model_validate_json(text)
        if text := given.get(Failure.parameter()):
            raise Failure.model_validate_json(text).error()
    said = body["status"].get("message", "its pod left no reason")
    raise Temporary(f"rollback {body['metadata']['name']} failed: {said}", do="Look at it with `argo get`.")


def _ended(body: Object) -> bool:
    return ended(body.get("status", {}).get("phase"))


def _news(body: Object, told: dict[tuple[str, str], str]) -> Iterator[Event]:
    """What has changed since it was last told: stages that started, stages that finished."""
    for stage, node in attempts(body, RELEASE):
        run = stage_run(stage, node)
        state = f"{node['id']} {'started' if under_way(node) else run.outcome}"
        if told.get((run.name, run.target)) == state:
            continue
        told[run.name, run.target] = state
        if under_way(node):
            yield Event(stage=run.name, target=run.target, kind="started")
        else:
            yield Event(
                stage=run.name, target=run.target, kind="finished", message=run.message, seconds=run.seconds,
                cached=run.cached, outcome=run.outcome,
            )  # fmt: skip
