"""A shadow on a cluster: the gateway copies a share of the requests to the challenger's pods, and drops the answers.

The operator writes that into the routes as long as this process counts up in an annotation; so nothing is copied any
more some seconds after it has died. What the servers counted tells failures and latencies. Answers can't be compared.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from shiplift.runtime.base.errors import PromotionConflict, ServerFailed, ShipliftError, Temporary
from shiplift.runtime.base.names import dns_name, serving_name
from shiplift.runtime.base.progress import progress
from shiplift.runtime.gates.alarms import MINUTE_S, counted, quantile
from shiplift.runtime.records.baking import BakeReading
from shiplift.runtime.records.deployment import Deployment, ServerPods
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.shadowing import Latency, Mirror, Shadowed
from shiplift.runtime.records.site import Cluster
from shiplift.runtime.serving.alarm_readings import reading_of
from shiplift.runtime.serving.kubernetes import diagnosis
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.kinds import GRPC_ROUTE, POD
from shiplift.runtime.serving.kubernetes.metrics_pages import metrics_pages
from shiplift.runtime.serving.kubernetes.objects.names import PACKAGE
from shiplift.runtime.serving.operator import declared
from shiplift.runtime.spec.shadowing import Shadow

UNCOMPARED = "answers were not compared: a gateway drops those to copied requests"
_BEAT_S = 5.0
_POLL_S = 0.5
_WRITTEN_S = 60.0  # how long the operator may take to write the routes
_ANSWER_S = 2.0

Pages = Callable[[Mapping[str, str]], Mapping[str, str]]  # the metrics of pods, from their addresses


class ClusterShadow:
    """The shadows of a cluster. See `runtime.measure.shadowing.place.ShadowPlace`."""

    def __init__(
        self,
        cluster: Cluster,
        api: KubernetesClient | None = None,
        *,
        pages: Pages | None = None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._api = api or KubernetesClient(cluster.serving_namespace)
        self._pages = pages or partial(metrics_pages, timeout_s=_ANSWER_S)
        self._clock, self._pause = clock, pause

    @contextmanager
    def mirroring(self, deployment: Deployment, champion: Package, wanted: Shadow) -> Iterator["ClusterMirror"]:
        """Copies requests for as long as the context lasts.

        Raises:
            ServerFailed: the gateway can't copy a share of the requests.
            Temporary: the operator does not write the routes.
        """
        if not isinstance(deployment.workload, ServerPods):
            raise ServerFailed("the staging server has no pods on this cluster", do="Rerun the release.")
        to = Mirror(revision=deployment.workload.name, share=wanted.share)
        sides = _Side(version=champion.version), _Side(version=deployment.package.version)
        mirror = ClusterMirror(self._api, champion.model, to, sides, self._pages, self._clock, self._pause)
        try:
            mirror.begin()
            yield mirror
        finally:
            with suppress(ShipliftError):  # the operator ends it by itself soon
                declared.mirror(self._api, champion.model, None)


@dataclass(kw_only=True)
class _Side:
    """What the pods of one side said: all readings of each pod, and the 99th percentile once a minute."""

    version: int
    readings: dict[str, list[BakeReading]] = field(default_factory=dict)
    minutes: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)

    def read(self, pod: str, reading: BakeReading) -> None:
        """Keeps a pod's reading: the first, the last, and those where a counter went back."""
        if reading.answered is None:
            return
        known = self.readings.setdefault(pod, [])
        monotone = len(known) > 1 and _grew(known[-2], known[-1]) and _grew(known[-1], reading)
        if monotone:
            known.pop()
        known.append(reading)

    def minute(self) -> None:
        """Keeps the slowest pod's quantiles of the last minute, if there were requests."""
        latest = [known[-1].latency_ms for known in self.readings.values() if known[-1].latency_ms]
        for kept, wanted in ((self.minutes, 0.99), (self.p50_ms, 0.5)):
            values = [value for each in latest if each and math.isfinite(value := quantile(each, wanted))]
            if values:
                kept.append(max(values))

    @property
    def counts(self) -> tuple[int, int]:
        """The requests that were answered and that failed since the beginning, in all pods."""
        both = [counted(known) for known in self.readings.values()]
        return sum(answered for answered, _ in both), sum(failed for _, failed in both)

    @property
    def latency(self) -> Latency | None:
        """The median of the minutes, between the lowest and the highest; None if none is known."""
        if not self.minutes:
            return None
        p50 = statistics.median(self.p50_ms) if self.p50_ms else math.nan
        middle = statistics.median(self.minutes)
        return Latency(p50_ms=p50, p99_ms=middle, low_ms=min(self.minutes), high_ms=max(self.minutes))


class ClusterMirror:
    """The copying, by looks of some seconds. See `runtime.measure.shadowing.place.Mirror`."""

    def __init__(
        self,
        api: KubernetesClient,
        model: str,
        mirror: Mirror,
        sides: tuple[_Side, _Side],
        pages: Pages,
        clock: Callable[[], float],
        pause: Callable[[float], None],
    ) -> None:
        self._api, self._model, self._mirror, self._pages = api, model, mirror, pages
        self._champion, self._challenger = sides
        self._clock, self._pause = clock, pause
        self._began = self._minute = clock()
        self._ratios: list[float] = []

    def begin(self) -> None:
        """Orders the copying, and waits until the routes have it."""
        deadline = self._clock() + _WRITTEN_S
        while not self._written():
            if self._clock() > deadline:
                raise Temporary(
                    f"the operator has not written the routes of {self._model} within {_WRITTEN_S:g} s",
                    do="See `shiplift status` and the operator's log, and rerun the release.",
                )
            self._beat()
            progress("waiting for the routes that copy requests")
            self._pause(_POLL_S)
        self._began = self._minute = self._clock()

    def look(self) -> Shadowed:
        """Reads what the pods of both sides counted."""
        service = declared.find(self._api, self._model)
        if service is None or service.version != self._champion.version:
            now = f"version {service.version}" if service and service.version else "nothing"
            raise PromotionConflict(
                f"{now} serves {self._model} now, not version {self._champion.version}, which was shadowed",
                do="Rerun the release: it compares and shadows again.",
            )
        self._beat()
        self._read(self._champion, service.status.revision)
        self._read(self._challenger, self._mirror.revision)
        if self._clock() - self._minute >= MINUTE_S or not self._challenger.minutes:
            self._minute = self._clock()
            before = len(self._champion.minutes), len(self._challenger.minutes)
            for side in (self._champion, self._challenger):
                side.minute()
            if (len(self._champion.minutes), len(self._challenger.minutes)) == (before[0] + 1, before[1] + 1):
                self._ratios.append(self._challenger.minutes[-1] / self._champion.minutes[-1])
        self._pause(_BEAT_S)
        return self._result()

    def _result(self) -> Shadowed:
        answered, failed = self._challenger.counts
        others, others_failed = self._champion.counts
        return Shadowed(
            champion=self._champion.version,
            share=self._mirror.share,
            seconds=round(self._clock() - self._began, 1),
            requests=answered + failed,
            failed=failed,
            champion_requests=others + others_failed,
            champion_failed=others_failed,
            challenger_latency=self._challenger.latency,
            champion_latency=self._champion.latency,
            p99_ratios=tuple(each for each in self._ratios if math.isfinite(each) and each > 0),
            uncompared=UNCOMPARED,
        )

    def _beat(self) -> None:
        self._mirror = self._mirror.model_copy(update={"beat": self._mirror.beat + 1})
        declared.mirror(self._api, self._model, self._mirror)

    def _written(self) -> bool:
        """Whether the routes, which the operator writes together, copy to the challenger.

        Raises:
            ServerFailed: the cluster's Gateway API forgets the share, so that all requests would be copied.
        """
        copies = self._copy_in(self._api.get(GRPC_ROUTE, dns_name(self._model)))
        if copies is not None and "fraction" not in copies:
            raise ServerFailed(
                "this cluster's Gateway API copies all requests or none: it does not know a share of them",
                do="Use a gateway with Gateway API 1.3 or newer, or leave `promotion.shadow` out.",
            )
        return copies is not None

    def _copy_in(self, route: Any) -> dict[str, Any] | None:
        for rule in ((route or {}).get("spec") or {}).get("rules") or ():
            for each in rule.get("filters") or ():
                to = each.get("requestMirror") or {}
                if (to.get("backendRef") or {}).get("name") == self._mirror.revision:
                    return dict(to)
        return None

    def _read(self, side: _Side, revision: str) -> None:
        pods = self._api.find(POD, f"{PACKAGE}={revision}")
        addresses = {body["metadata"]["name"]: diagnosis.address_of(body) for body in pods}
        for pod, page in self._pages({name: address for name, address in addresses.items() if address}).items():
            side.read(pod, reading_of(page, serving_name(self._model), side.version, self._clock()))


def _grew(before: BakeReading, now: BakeReading) -> bool:
    return (now.answered or 0) >= (before.answered or 0) and (now.failed or 0) >= (before.failed or 0)
