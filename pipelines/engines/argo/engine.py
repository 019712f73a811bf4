"""The engine for a cluster: Workflows in one namespace, with a registry and models that serve.

It needs only a kubeconfig: it reaches services inside the cluster through the API server's service proxy.
"""

import os
import time
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from shiplift.pipelines.engines.answers import (
    AbortedRelease,
    Accepted,
    Catalogue,
    CatalogueEntry,
    ClusterStatus,
    Prediction,
    Status,
    WorkflowStatus,
    champion_drift,
    require_approver,
    still_releasing,
)
from shiplift.pipelines.engines.argo import model_events, shield, single
from shiplift.pipelines.engines.argo.aborting import Aborting, bake_aborted
from shiplift.pipelines.engines.argo.following import events, logs
from shiplift.pipelines.engines.argo.layout import CAPTURE_READER, TARGETS
from shiplift.pipelines.engines.argo.past import Past
from shiplift.pipelines.engines.argo.releases import ArgoReleases, status_of
from shiplift.pipelines.engines.argo.services import service_status
from shiplift.pipelines.engines.argo.told import ToldTargets
from shiplift.pipelines.engines.argo.workflows import Run, as_parameter
from shiplift.pipelines.release import RETIRE, ROLLBACK
from shiplift.runtime.base.errors import ClusterRefused, MissingTool, NotFound, NothingToAbort, ShipliftError
from shiplift.runtime.base.names import dns_name
from shiplift.runtime.capture.parts import READER
from shiplift.runtime.composition.checked import Unusable
from shiplift.runtime.events.event import ModelEvent
from shiplift.runtime.events.outbox import Place
from shiplift.runtime.gates.report import Story
from shiplift.runtime.records.asked import AskedAgain
from shiplift.runtime.records.capturing import Captured, DeletedRows, ExportedRows
from shiplift.runtime.records.decision import Decision
from shiplift.runtime.records.drift import DriftReport
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.offline import OfflineOrder, OfflineResult
from shiplift.runtime.records.promotion import Abort, Promotion
from shiplift.runtime.records.release import Event, ReleaseReport
from shiplift.runtime.records.request import Trigger
from shiplift.runtime.records.retirement import Retired, Retirement, Retiring
from shiplift.runtime.records.site import Cluster, Site
from shiplift.runtime.serving.abort import this_user
from shiplift.runtime.serving.bundles.decoders import members_of
from shiplift.runtime.serving.discovery import CONFIG_MAP_NAME, PublishedModel, ServedModel
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.kinds import CONFIG_MAP, NODE, SECRET, WORKFLOW
from shiplift.runtime.serving.kubernetes.objects.names import HTTP
from shiplift.runtime.serving.operator import declared
from shiplift.runtime.serving.operator.declared import Declared
from shiplift.runtime.serving.service_proxy import client_of, transport_to
from shiplift.runtime.spec.document import parse
from shiplift.runtime.spec.pipeline import PipelineSpec
from shiplift.runtime.spec.target import Target
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.history import History
from shiplift.runtime.store.ledger import UncheckedLedger
from shiplift.runtime.store.members import Promoted
from shiplift.runtime.store.published import run_of
from shiplift.runtime.store.registry.rest import PATIENT_S, RestRegistry, newest_tagged
from shiplift.runtime.store.registry.terms import TAG, check_name, model_and_version, request_of
from shiplift.runtime.targets import catalogue, discovery, machine

if TYPE_CHECKING:
    from shiplift.runtime.capture.elsewhere import RowsElsewhere


@dataclass(frozen=True)
class ArgoEngine:
    """Shiplift in one namespace of the cluster that KUBECONFIG names; pages and catalogues are written to `home`.

    `inside`: this process is a pod that may reach the registry itself, with an account from its environment.
    """

    namespace: str
    home: Path
    inside: bool = False
    attended: bool = field(default=False, init=False)
    verified: bool = field(default=False, init=False)  # the key that verifies signatures never leaves the cluster

    @cached_property
    def api(self) -> KubernetesClient:
        """The client of the cluster."""
        return KubernetesClient(self.namespace)

    @cached_property
    def releases(self) -> ArgoReleases:
        """The releases of the cluster."""
        return ArgoReleases(self.api, self._tags)

    @cached_property
    def registry(self) -> RestRegistry:
        """The registry on the cluster."""
        uri = self.site.registry_uri
        transport = None if self.inside else transport_to(self.api, uri)
        return RestRegistry(uri, timeout_s=PATIENT_S, transport=transport)

    @cached_property
    def site(self) -> Site:
        """The site in the installed WorkflowTemplate.

        Raises:
            ClusterRefused: Shiplift is not installed in the namespace.
        """
        site = self.releases.site()
        if site is None:
            raise ClusterRefused(
                f"Shiplift is not installed in namespace {self.namespace!r}",
                do="Run `shiplift install`, or name the right one with --namespace.",
            )
        return site

    # --- releasing ---

    def order(self, name: str, spec: str, *, again: bool, allow_older: bool) -> Accepted:
        """Orders a release of a version, or of a model's newest version.

        Raises:
            NotFound: the registry has no such version.
            SpecInvalid: `spec` is not a valid spec.
        """
        parse(spec)
        model, version = model_and_version(name)
        info = self._past.version(model, version) if version else self.registry.newest_of(model)
        trigger = Trigger(kind="manual", requested_at=time.time(), allow_older=allow_older)
        return self.releases.accept(request_of(info, spec), trigger, again=again)

    def register(self, name: str, files: Mapping[str, bytes], tags: Mapping[str, str]) -> int:
        """Registers the next version of a model from files."""
        return self.registry.register(check_name(name), files, tags).version

    def tagged(self, model: str, key: str, value: str) -> int:
        """The newest version of a model whose tag `key` has this value; 0 if there is none."""
        return newest_tagged(self.registry, check_name(model), key, value)

    def tag(self, model: str, version: int, key: str, value: str) -> None:
        """Sets a tag of a version in the registry."""
        self.registry.tag(check_name(model), version, **{key: value})

    def under_way(self, name: str) -> bool:
        """Whether a release has a Workflow that has not ended."""
        body = self.api.get(WORKFLOW, name)
        return body is not None and not events.ended(body)

    def events(self, name: str) -> Iterator[Event | None]:
        """Yields the events of a release until it ends."""
        return events.of(self.api, name)

    def result(self, name: str) -> ReleaseReport:
        """The report of an ended release; its page is saved in `home` if the registry has it.

        Raises:
            NotFound: the release left no report.
        """
        report = self.releases.result(name)
        if report is None:
            raise NotFound(
                f"release {name} left no report", do=f"Look at it with `argo get -n {self.namespace} {name}`."
            )
        try:
            return self._past.with_page(report)
        except ShipliftError:  # for example without an account for the registry: the release still ended
            return report.model_copy(update={"report": ""})

    def cancel(self, model: str, version: int) -> str:
        """Cancels a version's release, and waits for its last stage; returns its name, or "" if there was none."""
        for run in self.releases.active(model):
            if run.request is not None and (run.request.model, run.request.version) == (model, version):
                self.stop(run.name)
                return run.name
        return ""

    def stop(self, name: str) -> None:
        """Cancels a release by its name, and waits for its last stage; a promotion is aborted."""
        run = self.releases.get(name)
        if run.active and self._aborting.moves(run):
            self._aborting.end(run, shield.abort(self.api, name, self._order("cancelled")))
        else:
            self.releases.cancel(name)
        for _ in self.events(name):
            pass

    def abort(self, model: str, reason: str) -> AbortedRelease:
        """Ends the release of a model that has begun; all traffic goes back to the champion.

        While no release is under way and a version bakes, that is rolled back.
        """
        order, api = self._order(reason), KubernetesClient(self._cluster.serving_namespace)
        service = declared.find(api, check_name(model))
        try:
            return self._aborting.abort(model, order)
        except NothingToAbort:
            if service is None or not service.bakes:
                raise
        return bake_aborted(api, service, order, lambda: self.rollback(model))

    def _order(self, reason: str) -> Abort:
        return Abort(by=self.api.user() or this_user(), reason=reason, at=time.time())

    @property
    def _aborting(self) -> Aborting:
        return Aborting(self.releases, self.api, KubernetesClient(self._cluster.serving_namespace))

    def decide(self, model: str, version: int, *, approve: bool, reason: str) -> Accepted:
        """Approves or rejects a version that waits for approval: its release goes on, from its kept results."""
        decision = Decision(approved=approve, by=self.api.user() or this_user(), reason=reason, at=time.time())
        require_approver(self.site, decision)
        info = self._past.version(check_name(model), version)
        recorded = UncheckedLedger(self.registry, run_of(info)).approval()
        return self.releases.decide(request_of(info, recorded.spec if recorded else ""), info.tags, decision)

    def rollback(self, model: str) -> Promotion:
        """Makes the previous champion serve again."""
        return single.run(self.api, ROLLBACK, Promotion, check_name(model), {})

    def retire(self, model: str, version: int, *, reason: str, force: bool) -> Retired:
        """Takes a model out of service, or removes what a version has left, in a Workflow with one stage."""
        runs = [run for run in self.releases.active(check_name(model)) if run.request and run.request.model == model]
        names = [run.name for run in runs if run.request and version in (0, run.request.version)]
        if names and not force:
            raise still_releasing(model, names)
        for name in names:
            self.stop(name)
        retirement = Retirement(by=self.api.user() or this_user(), reason=reason, at=time.time())
        order = Retiring(retirement=retirement, version=version, force=force)
        return single.run(self.api, RETIRE, Retired, model, {Retiring.parameter(): as_parameter(order)})

    # --- events ---

    def model_events(self, model: str, *, newest: int, follow: bool) -> Iterator[ModelEvent]:
        """The beginnings and ends of releases, as their Workflows have them."""
        return model_events.model_events(self.releases, model, newest=newest, follow=follow)

    def told(self) -> tuple[Place, ...]:
        """How far the targets of events are, as the reconciler last wrote; nothing if one may not read that."""
        with suppress(ClusterRefused):
            return tuple(ToldTargets(self.api).read().values())
        return ()

    # --- past releases ---

    def report(self, model: str, version: int) -> ReleaseReport:
        """The report of a version's newest release, from the registry; its page is saved in `home`."""
        return self._past.report(model, version)

    def reports(self, model: str = "") -> list[ReleaseReport]:
        """The newest report of each released version."""
        return self._past.reports(model)

    def history(self, report: ReleaseReport) -> History:
        """The records that a release's stages produced, unverified: the key for that never leaves the cluster."""
        return self._past.history(report)

    def story(self, report: ReleaseReport) -> Story:
        """The records of a release, prepared for its report page."""
        return self._past.story(report)

    def champions(self) -> dict[str, int]:
        """The champion of each model (0: none): what production serves."""
        served = declared.versions(self._services())
        return self._past.champions() | {model: version for model, version in served.items() if version}

    def ask(self, model: str, version: int, form: str, rows: Sequence[int], clients: int) -> AskedAgain:  # noqa: ARG002
        """Refuses: models run confined on the cluster, and a command on this machine can't start a server there."""
        raise _not_asked(model, version)

    def ask_given(
        self,
        model: str,
        version: int,
        form: str,  # noqa: ARG002
        inputs: Mapping[str, Any],  # noqa: ARG002
        clients: int,  # noqa: ARG002
    ) -> AskedAgain:
        """Refuses, for the same reason."""
        raise _not_asked(model, version)

    def members(self, pipeline: PipelineSpec) -> dict[str, Package | Unusable]:
        """A pipeline's members as they were promoted, unverified like `history`."""
        served = declared.versions(self._services())
        promoted = Promoted(
            registry=self.registry,
            champion=lambda model: served.get(model, 0),
            promotion=lambda info: UncheckedLedger(self.registry, run_of(info)).promotion(),
        )
        with TemporaryDirectory() as scratch:  # the real store may be unreachable from here, and a digest is enough
            return members_of(pipeline, promoted.find, ArtifactStore(Path(scratch).as_uri()))

    def store(self) -> ArtifactStore:
        """Where the packages of past releases are stored; its address may not be reachable from here."""
        return ArtifactStore(self.site.artifacts_uri)

    @property
    def _past(self) -> Past:
        return Past(self.registry, self.home)

    # --- serving ---

    def infer(self, model: str, file: Path, *, version: int | None = None, sequence: bool = False) -> Prediction:
        """Sends the content of a file, as one request, to the pods with the largest share of the model's traffic.

        The request bypasses the gateway, whose address may not be reachable from here. The requests of a sequence all
        reach the same server only if the model has one replica.
        """
        from shiplift.pipelines.engines.inference import ask  # noqa: PLC0415 - Triton's client: 0.2 s
        from shiplift.runtime.serving.triton.http_client import TritonHttpClient  # noqa: PLC0415

        cluster = self._cluster
        api = KubernetesClient(cluster.serving_namespace)
        service = declared.find(api, check_name(model))
        if service is None or not service.status.revision:
            raise NotFound(f"production does not serve {model!r}", do="See `shiplift status --engine argo`.")
        uri = f"http://{service.status.revision}.{cluster.serving_namespace}:{HTTP}"
        with client_of(api, uri) as http:
            return ask(TritonHttpClient(http), model, file, version=version, sequence=sequence)

    def score(self, order: OfflineOrder) -> Iterator[Event | OfflineResult | None]:
        """Scores a dataset in a Workflow, which goes on if nobody listens any more."""
        from shiplift.pipelines.engines.argo.scoring import score  # noqa: PLC0415 - every step of it

        self._cluster  # noqa: B018 - raises if Shiplift is not installed
        return score(self.api, order)

    def discover(self, model: str) -> ServedModel:
        """Where a model answers, as the operator published it: inside the cluster for a pod, else outside."""
        text = self._published().get(dns_name(check_name(model)))
        if text is None:
            raise NotFound(f"production does not serve {model!r}", do="See `shiplift status --engine argo`.")
        served = _seen_from_here(text)
        if served is None:
            raise NotFound(
                f"{model!r} has no address outside the cluster",
                do="Set `gateway` or `ingress` in the values, or use `shiplift infer --engine argo`.",
            )
        return served

    def discover_all(self) -> list[ServedModel]:
        """Where each model answers, as the operator published it."""
        served = (_seen_from_here(text) for _, text in sorted(self._published().items()))
        return [each for each in served if each is not None]

    def _published(self) -> dict[str, str]:
        body = KubernetesClient(self._cluster.serving_namespace).get(CONFIG_MAP, CONFIG_MAP_NAME) or {}
        return dict(body.get("data") or {})

    def captured(self, model: str) -> Captured:
        """What is kept of a model's requests and answers."""
        with self._rows(check_name(model)) as rows:
            return rows.summary(model)

    def export_captured(self, model: str, file: Path) -> ExportedRows:
        """Writes the captured rows of a model to a Parquet file."""
        with self._rows(check_name(model)) as rows:
            return rows.export(model, file)

    def delete_captured(self, model: str, value: str) -> DeletedRows:
        """Deletes the captured rows whose `capture.key` has this value."""
        with self._rows(check_name(model)) as rows:
            return rows.delete(model, value)

    def data_drift(self, model: str, *, now: bool) -> DriftReport:  # noqa: ARG002
        """Nothing compares what is captured on a cluster."""
        raise NotFound(
            f"the drift of {model!r} is not measured: it is measured on one machine only",
            do="Use `--engine local` for models that one machine serves.",
        )

    def logs(self, name: str, *, lines: int, follow: bool) -> Iterator[str]:
        """The logs of a component's pods, or of a version's newest release; each line begins with its pod or stage."""
        name = name or logs.PARTS[0]
        if name in logs.PARTS:
            return logs.of_part(self.api, name, lines=lines, follow=follow)
        workflow = self._newest_workflow(name)
        ended = (lambda: not self.under_way(workflow)) if follow else None
        return logs.of_release(self.api, workflow, lines=lines, ended=ended)

    def status(self, model: str | None) -> Status:
        """What serves, then releases: those whose Workflows still exist, then those that only the registry knows."""
        runs = sorted(self.releases.runs(model=model or ""), key=lambda run: run.created_at, reverse=True)
        past, note = self._recorded(model or "")
        names = {run.name for run in runs}
        retired = {release.name: release for release in past if release.outcome == "retired"}
        shown = (
            *(self._shown(run, retired) for run in runs if run.request),
            *(release for release in past if release.name not in names),
        )
        services = [service for service in self._services() if model in (None, service.spec.model)]
        aliases = self.registry.aliases(model) if model else {}
        drift = champion_drift(model, declared.versions(services).get(model, 0), aliases) if model else ""
        return ClusterStatus(
            namespace=self.namespace,
            services=tuple(map(service_status, services)),
            releases=shown,
            aliases=aliases,
            drift=drift,
            note=note,
        )

    def targets(self) -> Catalogue:
        """The catalogue installed on the cluster."""
        config_map = self.api.get(CONFIG_MAP, TARGETS)  # None: the values have no targets
        text = str((config_map or {}).get("data", {}).get(catalogue.FILE, ""))
        entries = tuple(CatalogueEntry(target=target, unfit=None) for target in catalogue.parse(text).values())
        return Catalogue(file=f"ConfigMap {self.namespace}/{TARGETS}", entries=entries, default_place="any node")

    def detect(self, name: str) -> Catalogue:
        """Adds the targets detected from the cluster's nodes to the catalogue of `home`, and returns them.

        To install them on the cluster, list them under `targets` in the values.
        """
        targets = discovery.named(discovery.of_nodes(self.api.find(NODE)), name)
        file = catalogue.save(self.home, *targets)
        return Catalogue(file=str(file), entries=tuple(map(_entry, targets)), default_place="any node")

    # --- helpers ---

    @contextmanager
    def _rows(self, model: str) -> "Iterator[RowsElsewhere]":
        """The rows that the cluster keeps, reached with the token that the caller may read.

        Raises:
            NotFound: nothing is kept on this cluster.
            ClusterRefused: the caller may not read the Secret.
        """
        from shiplift.runtime.capture.elsewhere import RowsElsewhere  # noqa: PLC0415 - PyArrow: 0.1 s and 60 MB

        uri, secret = self._cluster.capture_uri, self.api.get(SECRET, CAPTURE_READER)
        if not uri or secret is None:
            raise NotFound(
                f"no rows of {model!r} are kept: nothing on this cluster keeps what is captured",
                do="Set `capture: {}` in the values, and run `shiplift install`.",
            )
        with client_of(self.api, uri) as client:
            yield RowsElsewhere(client, b64decode(secret["data"][READER]).decode())

    @property
    def _cluster(self) -> Cluster:
        place = self.site.place
        if not isinstance(place, Cluster):
            raise ClusterRefused("the installed WorkflowTemplate names no cluster", do="Run `shiplift install` again.")
        return place

    def _services(self) -> list[Declared]:
        """What should serve, and what the operator last saw; empty if Shiplift is not installed."""
        site = self.releases.site()
        if site is None or not isinstance(site.place, Cluster):
            return []
        return list(declared.everything(KubernetesClient(site.place.serving_namespace)))

    def _recorded(self, model: str) -> tuple[list[WorkflowStatus], str]:
        """The releases that the registry knows; if it does not answer, an empty list and a note that says so."""
        if self.releases.site() is None:
            return [], ""
        try:
            return self._past.recorded(model), ""
        except ShipliftError as error:
            return [], f"releases whose Workflows were removed are not listed: {error}"

    def _shown(self, run: Run, retired: Mapping[str, WorkflowStatus]) -> WorkflowStatus:
        """A release in a line; the registry knows whether its version was retired since."""
        shown, since = status_of(run, self._now(run)), retired.get(run.name)
        return shown.model_copy(update={"outcome": since.outcome, "reason": since.reason}) if since else shown

    def _now(self, run: Run) -> str:
        """The stages of a release that are running, in words."""
        stages = events.now(self.api, run.name) if run.active else ""
        return f"under way: {stages}" if stages else ""

    def _tags(self, model: str, version: int) -> Mapping[str, str]:
        info = self.registry.version(model, version)
        return {key: tag for key, tag in info.tags.items() if key.startswith(TAG)} if info else {}

    def _newest_workflow(self, name: str) -> str:
        """The Workflow of the newest release of a version or model, or `name` itself if a Workflow has that name."""
        if "/" not in name and self.api.get(WORKFLOW, name) is not None:
            return name
        model, version = model_and_version(name)
        runs = [run for run in self.releases.runs(model=model) if run.request and run.request.model == model]
        runs = [run for run in runs if run.request and version in (None, run.request.version)]
        if not runs:
            raise NotFound(f"there is no log of {name!r}", do=f"Logs are: {', '.join(logs.PARTS)}, or MODEL/VERSION.")
        return max(runs, key=lambda run: run.created_at).name


def _entry(target: Target) -> CatalogueEntry:
    return CatalogueEntry(target=target, unfit=machine.unfit_here(target))


def _seen_from_here(published: str) -> ServedModel | None:
    return PublishedModel.model_validate_json(published).seen_from(inside="KUBERNETES_SERVICE_HOST" in os.environ)


def _not_asked(model: str, version: int) -> MissingTool:
    return MissingTool(
        f"{model}/{version} was released on a cluster, where a command can't ask its original again",
        do="Register the version with a local stack (`shiplift up`), release it there, and ask that.",
    )
