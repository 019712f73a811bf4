"""A small pod that repairs whatever was lost on the way.

    python -m shiplift.pipelines.daemons.reconciler

Each turn compares the desired state with the actual one and acts on the difference; every action is idempotent. It
starts releases whose webhook was lost, stops Workflows whose pods can't start, concludes releases whose own exit
handler did not run (`argo terminate`, a missing image), keeps MLflow's webhook registered, and counts ended releases
for Prometheus. If one part fails, the others still run.
"""

import argparse
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import structlog

from shiplift.pipelines.daemons import stuck
from shiplift.pipelines.daemons.prometheus import ReleaseMetrics, listen, web
from shiplift.pipelines.engines.argo.releases import ArgoReleases, concluding, connect
from shiplift.pipelines.engines.argo.workflows import RELEASE_TEMPLATE, Run
from shiplift.pipelines.triggers import registry_sweep
from shiplift.pipelines.triggers.settings import TriggerSettings, load, read_secrets
from shiplift.runtime.base.errors import NotFound, ShipliftError
from shiplift.runtime.records.release import ReleaseReport
from shiplift.runtime.records.verdict import Outcome
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.connection import Conflict, Object
from shiplift.runtime.serving.kubernetes.kinds import POD
from shiplift.runtime.store.registry import TAG
from shiplift.runtime.store.registry_rest import RestRegistry

WEBHOOK = "shiplift"
_SETTLE_S = 15.0  # an exit handler's results may appear a little after its Workflow has ended


class Reconciler:
    """The reconciler of a namespace. `pods` lists the pods of its Workflows."""

    def __init__(
        self,
        settings: TriggerSettings,
        releases: ArgoReleases,
        registry: RestRegistry,
        pods: Callable[[], Iterable[Object]],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._releases = releases
        self._registry = registry
        self._pods = pods
        self._clock = clock
        self._registered_secret = ""
        self._log = structlog.get_logger()
        self.metrics = ReleaseMetrics()

    def turn(self) -> None:
        """Compares once, and acts."""
        self._part("webhook", self._register_webhook)
        self._part("sweep", self._sweep)
        runs: dict[str, Run] = {}
        if self._part("list", lambda: runs.update({run.name: run for run in self._releases.everything()})):
            self._part("stuck", lambda: self._stop_stuck(runs))
            self._part("retried", lambda: self._resume_retried(runs))
            for run in runs.values():
                if run.template == RELEASE_TEMPLATE and not run.active and not run.counted:
                    self._part("conclude", lambda run=run: self._conclude(run, runs))  # type: ignore[misc]
            self.metrics.active.set(sum(run.template == RELEASE_TEMPLATE and run.active for run in runs.values()))
        self.metrics.last_turn.set(self._clock())

    def healthy(self) -> bool:
        """Whether a turn ended recently."""
        last = float(self.metrics.last_turn._value.get())
        return self._clock() - last < 300 + 3 * self._settings.reconciler.every_s

    def _part(self, name: str, act: Callable[[], object]) -> bool:
        """Does a part of a turn; returns whether it succeeded."""
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
            self._registry.ensure_webhook(WEBHOOK, url, secret, renew=secret != self._registered_secret)
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
        """Makes sure that the registry has the ending of an ended release, and counts the release once it does."""
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
        self._releases.mark_counted(run)
        self.metrics.ended(run, report)

    def _recorded(self, run: Run, runs: dict[str, Run]) -> bool:
        """Whether the registry has the ending of a release or of a later one, or no longer has the model version."""
        info = self._registry.version(run.request.model, run.request.version) if run.request else None
        if info is None:
            return True
        name = info.tags.get(f"{TAG}release", "")
        recorded = runs.get(name)
        return name == run.name or (recorded.created_at > run.created_at if recorded else bool(name) and run.concluded)

    def _tag_version(self, run: Run, report: ReleaseReport | None) -> None:
        """Writes the essential tags of a release whose last stage could not run."""
        if run.request is None:
            return
        reason = run.stopped_because or "its Workflow ended before it could report how it went"
        tags = {"release": run.name, "verdict": str(Outcome.INCONCLUSIVE), "outcome": "failed", "reason": reason}
        if report is not None:
            tags |= {"verdict": str(report.verdict), "reason": report.reason, "outcome": report.outcome}
        try:
            self._registry.tag(run.request.model, run.request.version, **tags)
        except NotFound:
            self._log.info("the model version was deleted", workflow=run.name)


def serve(settings: TriggerSettings, stop: threading.Event) -> None:
    """Takes a turn every `every_s` seconds until `stop` is set."""
    registry = RestRegistry(settings.registry_uri)
    api = KubernetesClient(settings.namespace)
    reconciler = Reconciler(
        settings,
        connect(settings.namespace, registry),
        registry,
        lambda: api.each(POD, f"{stuck.OF_WORKFLOW},workflows.argoproj.io/completed=false"),
    )
    server = listen(web(reconciler.metrics.registry, reconciler.healthy), settings.reconciler.port)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while not stop.is_set():
        reconciler.turn()
        stop.wait(settings.reconciler.every_s)
    server.shutdown()


def main() -> None:
    """Reconciles a namespace until SIGTERM."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--config", "--cluster", type=Path, required=True, help="the settings of this cluster, as JSON")
    arguments = parser.parse_args()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.JSONRenderer(),
        ]
    )
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    serve(load(arguments.config), stop)


if __name__ == "__main__":
    try:
        main()
    except ShipliftError as error:
        print(f"{error.title}: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from error
