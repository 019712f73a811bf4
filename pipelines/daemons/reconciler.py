"""A small pod that repairs what other components lost or left unfinished.

    python -m shiplift.pipelines.daemons.reconciler

Each turn compares the desired state with the actual one and acts on the difference. Every action is idempotent, and if
one part fails, the others still run. A turn
- keeps MLflow's webhook registered,
- starts releases and git pushes whose webhook was lost,
- continues releases about which people decided in the registry, where the site's policy trusts that,
- starts Workflows that move back aliases moved by hand, that declare champions unknown to production, and that retire
  models whose service was deleted with an order to do so,
- stops Workflows whose pods can't start,
- concludes releases whose own exit handler did not run (`argo terminate`, a missing image),
- counts ended releases for Prometheus, and tells others of releases (`telling`).
"""

import argparse
import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import structlog

from shiplift.pipelines.daemons import stuck
from shiplift.pipelines.daemons.prometheus import ReleaseMetrics, listen, web
from shiplift.pipelines.daemons.telling import Telling
from shiplift.pipelines.engines.answers import Accepted
from shiplift.pipelines.engines.argo.releases import ArgoReleases, concluding, connect
from shiplift.pipelines.engines.argo.told import ToldTargets
from shiplift.pipelines.engines.argo.workflows import RELEASE_TEMPLATE, Push, Run
from shiplift.pipelines.triggers import approval_sweep, drift_sweep, registry_sweep
from shiplift.pipelines.triggers.git_sweep import GitSweep, HandledCommits
from shiplift.pipelines.triggers.settings import TriggerSettings, load, read_secrets
from shiplift.runtime.base.daemon import log_as_json, run_main, stop_on_signals
from shiplift.runtime.base.errors import NotFound, RegistryHeld, ShipliftError
from shiplift.runtime.base.names import dns_name
from shiplift.runtime.records.decision import Decision
from shiplift.runtime.records.release import ReleaseReport
from shiplift.runtime.records.request import same_time
from shiplift.runtime.records.retirement import Retirement, Retiring
from shiplift.runtime.records.site import Cluster
from shiplift.runtime.records.verdict import Outcome
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.connection import Conflict, Object
from shiplift.runtime.serving.kubernetes.kinds import CONFIG_MAP, POD
from shiplift.runtime.serving.operator import declared
from shiplift.runtime.serving.operator.deletions import ORDERS, order_for
from shiplift.runtime.serving.operator.deletions import orders as noted_orders
from shiplift.runtime.store.ledger import PROMOTION, UncheckedLedger
from shiplift.runtime.store.published import run_of
from shiplift.runtime.store.registry.lease import LASTS_S, RegistryLease
from shiplift.runtime.store.registry.rest import RestRegistry
from shiplift.runtime.store.registry.terms import TAG, VersionInfo, request_of

_DECLARED_TRIES = 3
_RETRY_S = 2.0  # between turns until the webhook is registered: the registry may still be starting
_SETTLE_S = 15.0  # an exit handler's results may appear a little later than its Workflow's end


class Reconciler:
    """The reconciler of a namespace.

    `pods` lists the pods of its Workflows. `serving` returns the version of each model that has the most traffic, 0 for
    a model that should serve but does not, and None if the state of production is unknown. `orders` are those to retire
    models whose service was deleted. `commits` has the last handled commit of each repository; without it, repositories
    are not swept. `telling` tells others of releases.
    """

    def __init__(  # noqa: PLR0913 - what it acts on, each replaced in tests
        self,
        settings: TriggerSettings,
        releases: ArgoReleases,
        registry: RestRegistry,
        pods: Callable[[], Iterable[Object]],
        *,
        serving: Callable[[], Mapping[str, int] | None] = lambda: None,
        orders: "Orders | None" = None,
        commits: HandledCommits | None = None,
        telling: Telling | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._telling = telling
        self._releases = releases
        self._registry = registry
        self._pods = pods
        self._serving = serving
        self._orders = orders or Orders(lambda: None)
        self._known: dict[str, drift_sweep.State] = {}
        self._declared: Counter[tuple[str, int]] = Counter()
        self._clock = clock
        self._registered_secret = ""
        self._held = False
        self._announced = False
        self._log = structlog.get_logger()
        self.metrics = ReleaseMetrics()
        self._git = (
            GitSweep(
                settings.repositories, settings.reconciler, commits, releases.push, swept=self._count_swept, clock=clock
            )
            if commits
            else None
        )

    def turn(self) -> None:
        """Compares the states once, and acts on the difference."""
        self._held = False
        registered = self._part("webhook", self._register_webhook)
        self._announced = self._announced or registered or self._held
        if not self._held:
            self._part("sweep", self._sweep)
            self._part("approvals", self._follow_decisions)
            self._part("aliases", self._reinstate_aliases)
            self._part("champions", self._declare_champions)
        runs: dict[str, Run] = {}
        if self._part("list", lambda: runs.update({run.name: run for run in self._releases.everything()})):
            self._part("stuck", lambda: self._stop_stuck(runs))
            self._part("retried", lambda: self._resume_retried(runs))
            for run in runs.values():
                if run.template == RELEASE_TEMPLATE and not run.active and not run.counted:
                    self._part("conclude", lambda run=run: self._conclude(run, runs))  # type: ignore[misc]
            self._part("git", lambda: self._sweep_repositories(runs))
            self._part("events", lambda: self._tell(runs))
            self.metrics.active.set(sum(run.template == RELEASE_TEMPLATE and run.active for run in runs.values()))
        self.metrics.last_turn.set(self._clock())

    def healthy(self) -> bool:
        """Whether a turn ended recently."""
        last = float(self.metrics.last_turn._value.get())
        return self._clock() - last < 300 + 3 * self._settings.reconciler.every_s

    def ready(self) -> bool:
        """Whether new versions are announced: this installation's webhook is registered, or that of another holder."""
        return self._announced and self.healthy()

    def _part(self, name: str, act: Callable[[], object]) -> bool:
        """Runs a part of a turn; returns whether it succeeded."""
        try:
            act()
        except (ShipliftError, Conflict) as error:
            self.metrics.failures.labels(name).inc()
            self._log.warning("failed", part=name, error=str(error))
            return False
        return True

    # --- what starts releases ---

    def _register_webhook(self) -> None:
        url = self._settings.reconciler.webhook_url
        secret = next(iter(read_secrets(self._settings.secrets.mlflow)), "")
        if url and secret:
            lease = RegistryLease(self._registry, self._settings.holder, f"namespace {self._settings.namespace}")
            lasts_s = max(LASTS_S, 3 * self._settings.reconciler.every_s)
            try:
                lease.renew(url, secret, lasts_s=lasts_s, secret_changed=secret != self._registered_secret)
            except RegistryHeld:
                self._held = True  # another installation releases from this registry: start nothing here
                raise
            self._registered_secret = secret

    def _sweep(self) -> None:
        since = self._settings.reconciler.since
        if since is None:
            since = self._releases.installed_at()
        if since is not None:
            registry_sweep.sweep(
                self._registry,
                self._releases.accept,
                since=since,
                tell=lambda message: self._log.info("sweep", message=message),
            )

    def _tell(self, runs: Mapping[str, Run]) -> None:
        if self._telling:
            site = self._releases.site()
            self._telling.turn(runs, site.page_of if site else lambda *_: "")

    def _follow_decisions(self) -> None:
        site = self._releases.site()
        if site is not None:
            approval_sweep.sweep(
                self._registry,
                self._decide,
                site.policy,
                tell=lambda message: self._log.info("approvals", message=message),
            )

    def _decide(self, info: VersionInfo, decision: Decision) -> Accepted:
        recorded = UncheckedLedger(self._registry, run_of(info)).approval()
        return self._releases.decide(request_of(info, recorded.spec if recorded else ""), info.tags, decision)

    def _sweep_repositories(self, runs: Mapping[str, Run]) -> None:
        """Starts pushes whose webhook was lost. A failure of one repository does not stop the others."""
        if self._git and not self._held:
            for look in self._git.parts(runs.values()):
                self._part("git", look)

    def _count_swept(self, push: Push, accepted: Accepted) -> None:
        self.metrics.swept_pushes.inc()
        self._log.info("sweep", message=f"the sweep found a push to {push.repository!r}: {accepted.name}")

    def _reinstate_aliases(self) -> None:
        """Starts Workflows that move aliases back: only their pods have the key that checks the ledger's signatures."""
        serving = self._serving() or {}
        drift_sweep.sweep(
            self._registry,
            lambda model: serving.get(model, 0),
            self._in_order,
            self._known,
            tell=lambda message: self._log.warning("aliases", message=message),
        )

    def _declare_champions(self) -> None:
        """Starts Workflows that tell production to serve promoted versions.

        Needed after an upgrade from a version that had no `TritonService`s, and after a new installation.
        """
        ordered = self._orders.read()  # first: a service whose deletion was noted is gone by then
        serving = self._serving()
        undeclared = dict(drift_sweep.undeclared(self._registry, serving)) if serving is not None else {}
        for model in [model for model in undeclared if order_for(model, ordered)]:
            self._retire(model, undeclared.pop(model), ordered)
        for done in set(ordered) if serving is not None else ():  # it is retired, or someone declared it again
            self._orders.forget(done)
        for model, champion in undeclared.items():
            tries = self._declared[model, champion]
            if tries < _DECLARED_TRIES and not self._promoted(model, champion):
                self._declared[model, champion] = _DECLARED_TRIES  # set by hand, never promoted by us: leave it alone
            elif tries < _DECLARED_TRIES and self._releases.reinstate(model):
                self._declared[model, champion] += 1
                self._log.warning("a champion is unknown to production", model=model, version=champion)

    def _retire(self, model: str, champion: int, ordered: dict[str, Retirement]) -> None:
        """Starts the Workflow that retires a model whose service was deleted with an order to do so."""
        retirement = ordered.pop(dns_name(model)).model_copy(update={"version": champion})
        if self._releases.retire(model, Retiring(retirement=retirement, force=True)):
            self._log.info("retiring", model=model, version=champion, because=retirement.sentence)

    def _promoted(self, model: str, version: int) -> bool:
        """Whether the registry has a record of a version's promotion. Its signature is not checked here."""
        info = self._registry.version(model, version)
        if info is None:
            return False
        run_id = info.run_id or info.tags.get(f"{TAG}run_id", "")
        recorded, unfinished = recorded_previous(self._registry.read_text(run_id, PROMOTION), info.created_at)
        return recorded >= 0 and not unfinished

    def _in_order(self, model: str, state: drift_sweep.State) -> bool:
        """Whether the aliases match the champion's record, whose signature is not checked here.

        If they don't, starts a Workflow that checks it.
        """
        served, champion, previous = state
        info = self._registry.version(model, served)
        if info is None:
            self._log.warning("the champion was deleted from the registry", model=model, version=served)
            return champion == 0
        run_id = info.run_id or info.tags.get(f"{TAG}run_id", "")
        recorded, unfinished = recorded_previous(self._registry.read_text(run_id, PROMOTION), info.created_at)
        if recorded < 0 and champion in (0, served):  # a deleted version's number, or its record is gone
            self._log.warning("the champion has no record of its promotion", model=model, version=served)
            return True
        if recorded != previous and not previous and recorded > 0:  # the previous version may be deleted, or retired
            recorded = recorded if self._promoted(model, recorded) else 0
        if champion == served and recorded == previous:
            return True
        if not unfinished and self._releases.reinstate(model):
            self._log.warning("aliases were moved by hand", model=model, serves=served, champion=champion)
        return False

    # --- what ends them ---

    def _stop_stuck(self, runs: dict[str, Run]) -> None:
        settings = self._settings.reconciler
        pods = [pod for pod in map(stuck.of_pod, self._pods()) if pod]
        pods += [pod for run in runs.values() if run.active and (pod := stuck.of_run(run))]
        for name, pod in stuck.overdue(pods, now=self._clock(), settings=settings).items():
            run = runs.get(name)
            if run is None or not run.active or run.shutdown == "Terminate":
                continue
            if not (run.shutdown and run.stopped_at):
                self._log.warning("stuck", workflow=name, because=str(pod))
                self._releases.cancel(name, str(pod))
            elif self._clock() - run.stopped_at > settings.stuck_s:  # its exit handler can't start either
                self._releases.terminate(name, run.stopped_because or str(pod))
                self._tag_version(run, None)

    def _resume_retried(self, runs: dict[str, Run]) -> None:
        """Resumes Workflows that `argo retry` left hanging."""
        for run in runs.values():
            hanging = [node for node, since in run.podless if self._clock() - since > _SETTLE_S]
            if run.active and not run.shutdown and hanging:
                self._log.info("resuming", workflow=run.name, nodes=hanging)
                self._releases.remove_nodes(run.name, hanging)

    def _conclude(self, run: Run, runs: dict[str, Run]) -> None:
        """Makes sure that the registry knows how an ended release ended, and counts the release once it does."""
        conclusion = runs.get(concluding(run.name))
        if conclusion is None and run.request and not (run.concluded and self._recorded(run, runs)):
            if self._clock() - run.finished_at > _SETTLE_S:
                self._log.info("concluding", workflow=run.name)
                self._releases.conclude(run)
            return
        if conclusion is not None and conclusion.active:
            return
        report = run.report or (conclusion.report if conclusion else None)
        if not self._recorded(run, runs):
            self._tag_version(run, report)
        if not run.concluded:
            self._releases.mark_concluded(run)
        self._releases.mark_counted(run, report.message if report else run.stopped_because)
        self.metrics.ended(run, report)

    def _recorded(self, run: Run, runs: dict[str, Run]) -> bool:
        """Whether the registry knows how this release, or a later one, ended; also if its version was deleted."""
        info = self._version_of(run)
        if info is None:
            return True
        name = info.tags.get(f"{TAG}release", "")
        recorded = runs.get(name)
        return name == run.name or (recorded.created_at > run.created_at if recorded else bool(name) and run.concluded)

    def _tag_version(self, run: Run, report: ReleaseReport | None) -> None:
        """Writes the essential tags of a release whose last stage could not run."""
        if run.request is None or self._version_of(run) is None:
            self._log.info("the model version was deleted", workflow=run.name)
            return
        reason = run.stopped_because or "its Workflow ended before it could report how it went"
        tags = {"release": run.name, "verdict": str(Outcome.INCONCLUSIVE), "outcome": "failed", "reason": reason}
        if report is not None:
            tags |= {"verdict": str(report.verdict), "reason": report.reason, "outcome": report.outcome}
        with contextlib.suppress(NotFound):  # deleted a moment ago
            self._registry.tag(run.request.model, run.request.version, **tags)

    def _version_of(self, run: Run) -> VersionInfo | None:
        """The version that a Workflow releases; None if it was deleted, though another one may have its number."""
        info = self._registry.version(run.request.model, run.request.version) if run.request else None
        return info if info and run.request and same_time(run.request.registered_at, info.created_at) else None


class Orders:
    """The orders to retire models whose services were deleted by hand, as the operator notes them."""

    def __init__(self, serving: Callable[[], KubernetesClient | None]) -> None:
        """`serving` gives a client of the namespace that serves; None if Shiplift is not installed."""
        self._serving = serving

    def read(self) -> dict[str, Retirement]:
        """The orders by the name of the service."""
        api = self._serving()
        return noted_orders(api.get(CONFIG_MAP, ORDERS)) if api else {}

    def forget(self, name: str) -> None:
        """Removes an order that was followed, or that is void."""
        if api := self._serving():
            api.merge(CONFIG_MAP, ORDERS, {"data": {name: None}})


def recorded_previous(envelope: str | None, registered_at: float) -> tuple[int, str]:
    """The version before the champion, and the unfinished operation, in the stored record of a promotion.

    The record's signature is not checked. The version is -1 if the record can't be read, if it is that of a version
    that was registered at another time, or if the version was retired.
    """
    try:
        record = json.loads(json.loads(envelope or "")["record"])
        same = same_time(float(record.get("registered_at", 0)), registered_at) and not record.get("retired")
        return (int(record["previous"]), str(record["unfinished"])) if same else (-1, "")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return -1, ""


def production_of(releases: ArgoReleases) -> KubernetesClient | None:
    """A client of the namespace that serves; None if Shiplift is not installed."""
    site = releases.site()
    return KubernetesClient(site.place.serving_namespace) if site and isinstance(site.place, Cluster) else None


def versions_in_production(releases: ArgoReleases) -> dict[str, int] | None:
    """The version of each model that has the most traffic, 0 if none has any; None if Shiplift is not installed."""
    api = production_of(releases)
    return declared.versions(declared.everything(api)) if api else None


def serve(settings: TriggerSettings, stop: threading.Event) -> None:
    """Takes a turn every `every_s` seconds until `stop` is set."""
    registry = RestRegistry(settings.registry_uri)
    api = KubernetesClient(settings.namespace)
    releases = connect(settings.namespace, registry)
    reconciler = Reconciler(
        settings,
        releases,
        registry,
        lambda: api.each(POD, f"{stuck.OF_WORKFLOW},workflows.argoproj.io/completed=false"),
        serving=lambda: versions_in_production(releases),
        orders=Orders(lambda: production_of(releases)),
        commits=HandledCommits(api),
        telling=Telling(
            settings.events,
            f"urn:shiplift:{settings.holder or settings.namespace}",
            ToldTargets(api),
            lambda message: structlog.get_logger().warning("events", message=message),
        )
        if settings.events.targets
        else None,
    )
    answers = {"/healthz": reconciler.healthy, "/readyz": reconciler.ready}
    server = listen(web(reconciler.metrics.registry, answers), settings.reconciler.port)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while not stop.is_set():
        reconciler.turn()
        stop.wait(settings.reconciler.every_s if reconciler.ready() else min(_RETRY_S, settings.reconciler.every_s))
    server.shutdown()


def main() -> None:
    """Reconciles a namespace until SIGTERM."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--config", "--cluster", type=Path, required=True, help="the settings of this cluster, as JSON")
    arguments = parser.parse_args()
    log_as_json()
    serve(load(arguments.config), stop_on_signals())


if __name__ == "__main__":
    run_main(main)
