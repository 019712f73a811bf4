"""What makes it true in the end, whatever was lost on the way: one small pod.

    python -m shiplift.pipelines.daemons.reconciler

Each turn compares what should be with what is, and acts on the difference; every act may be done twice. It starts
what no webhook announced, stops Workflows whose pods can't start, concludes releases whose own exit handler did not
run (`argo terminate`, a missing image), keeps MLflow's webhook as it should be, and counts what ended for Prometheus.
One part that fails does not keep the others from being done.
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
_SETTLE_S = 15.0  # an exit handler's last word may come a little after its Workflow's end


class Reconciler:
    """One namespace's. `pods` lists those of its Workflows."""

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
        self._announced = ""
        self._looked_at = clock()
        self._log = structlog.get_logger()
        self.metrics = ReleaseMetrics()

    def turn(self) -> None:
        """Looks once, and acts."""
        self._part("webhook", self._announce)
        self._part("sweep", self._sweep)
        runs: dict[str, Run] = {}
        if self._part("list", lambda: runs.update({run.name: run for run in self._releases.everything()})):
            self._part("stuck", lambda: self._stop_stuck(runs))
            self._part("retried", lambda: self._unhang(runs))
            for run in runs.values():
                if run.template == RELEASE_TEMPLATE and not run.active and not run.counted:
                    self._part("conclude", lambda run=run: self._conclude(run, runs))  # type: ignore[misc]
            self.metrics.active.set(sum(run.template == RELEASE_TEMPLATE and run.active for run in runs.values()))
        self._looked_at = self._clock()
        self.metrics.last_turn.set(self._looked_at)

    def healthy(self) -> bool:
        """Whether it looked lately."""
        last = float(self.metrics.last_turn._value.get())
        return self._clock() - last < 300 + 3 * self._settings.reconciler.every_s

    def _part(self, name: str, act: Callable[[], object]) -> bool:
        """Does one part; gives whether it could."""
        try:
            act()
        except (ShipliftError, Conflict) as error:
            self.metrics.failures.labels(name).inc()
            self._log.warning("not done", part=name, error=str(error))
            return False
        return True

    # --- what starts releases ---

    def _announce(self) -> None:
        url = self._settings.reconciler.webhook_url
        secret = next(iter(read_secrets(self._settings.secrets.mlflow)), "")
        if url and secret:
            self._registry.ensure_webhook(WEBHOOK, url, secret, renew=secret != self._announced)
            self._announced = secret

    def _sweep(self) -> None:
        since = self._settings.reconciler.since
        if since is None:
            since = self._releases.installed_at()
        if since is not None:
            registry_sweep.sweep(
                self._registry, self._releases.accept, since=since, tell=lambda said: self._log.info("sweep", said=said)
            )

    # --- what ends them ---

    def _stop_stuck(self, runs: dict[str, Run]) -> None:
        given = self._settings.reconciler
        found = [one for one in (stuck.of_pod(pod) for pod in self._pods()) if one]
        found += [one for run in runs.values() if run.active and (one := stuck.of_run(run))]
        late = stuck.longest(found, now=self._clock(), patience=given)
        for name, one in late.items():
            run = runs.get(name)
            if run is None or not run.active or run.shutdown == "Terminate":
                continue
            if not (run.shutdown and run.stopped_at):
                self._log.warning("stuck", workflow=name, because=str(one))
                self._releases.cancel(name, str(one))
            elif self._clock() - run.stopped_at > given.stuck_s:  # its exit handler can't start either
                self._releases.terminate(name, run.stopped_because or str(one))
                self._tell(run, None)

    def _unhang(self, runs: dict[str, Run]) -> None:
        """Lets a Workflow go on that `argo retry` left hanging."""
        for run in runs.values():
            late = [node for node, since in run.podless if self._clock() - since > _SETTLE_S]
            if run.active and not run.shutdown and late:
                self._log.info("going on", workflow=run.name, nodes=late)
                self._releases.remove_nodes(run.name, late)

    def _conclude(self, run: Run, runs: dict[str, Run]) -> None:
        """Sees to it that the registry knows how an ended release ended, and counts it once it does."""
        later = runs.get(concluding(run.name))
        if later is None and run.request and not (run.concluded and self._told(run, runs)):
            if self._clock() - run.finished_at > _SETTLE_S:
                self._log.info("concluding", workflow=run.name)
                self._releases.conclude(run)
            return
        if later is not None and later.active:
            return
        report = run.report or (later.report if later else None)
        if not self._told(run, runs):
            self._tell(run, report)
        if not run.concluded:
            self._releases.mark_concluded(run)
        self._releases.mark_counted(run)
        self.metrics.ended(run, report)

    def _told(self, run: Run, runs: dict[str, Run]) -> bool:
        """Whether the registry knows of a release, or of a later one of the same version, or has no such version."""
        info = self._registry.version(run.request.model, run.request.version) if run.request else None
        if info is None:
            return True
        name = info.tags.get(f"{TAG}release", "")
        other = runs.get(name)
        return name == run.name or (other.created_at > run.created_at if other else bool(name) and run.concluded)

    def _tell(self, run: Run, report: ReleaseReport | None) -> None:
        """Says the least that must be said, where what says it properly could not run."""
        if run.request is None:
            return
        because = run.stopped_because or "its Workflow was ended before it could say how it went"
        told = {"release": run.name, "verdict": str(Outcome.INCONCLUSIVE), "outcome": "failed", "reason": because}
        if report is not None:
            told |= {"verdict": str(report.verdict), "reason": report.reason, "outcome": report.outcome}
        try:
            self._registry.tag(run.request.model, run.request.version, **told)
        except NotFound:
            self._log.info("the version is gone", workflow=run.name)


def serve(settings: TriggerSettings, stop: threading.Event) -> None:
    """Takes a turn every now and then until `stop` is set."""
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
    """Reconciles one namespace until SIGTERM."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--config", "--cluster", type=Path, required=True, help="the settings of this cluster, as JSON")
    words = parser.parse_args()
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
    serve(load(words.config), stop)


if __name__ == "__main__":
    try:
        main()
    except ShipliftError as error:
        print(f"{error.title}: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from error
