"""Watches the revisions that bake, and notes on their `TritonService` what becomes of them.

The leading operator watches. A raised alarm is written on the service at once, and `operator.stages` gives the traffic
back, whoever reads it: it is still there after a restart. Time that was watched is written every few seconds, so that a
restart loses no more. The registry follows: the reconciler sees that the aliases name another version than serves, and
the Workflow that moves them back finds the alarm.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import httpx
import structlog

from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.base.plain_http import NO_AUTHORITIES
from shiplift.runtime.gates.alarms import LOOK_S
from shiplift.runtime.gates.baking import Watch
from shiplift.runtime.records.baking import BakeReading, Baking
from shiplift.runtime.records.measurement import Counts
from shiplift.runtime.serving.alarm_readings import reading_of, values_of
from shiplift.runtime.serving.kubernetes.connection import Conflict
from shiplift.runtime.serving.operator.cluster.latencies import pages_of
from shiplift.runtime.serving.operator.evidence import Evidence, since
from shiplift.runtime.serving.operator.observed import Observed

_SAVE_S = 10.0
_READ_S = 2.0
_WRONG_BEATS = 2
Pages = Mapping[str, str]  # the metrics of each ready pod that answered


@dataclass(kw_only=True)
class _Bake:
    """What this process knows of a bake: the pods' last counters and their sums, and what it has written."""

    watch: Watch = field(default_factory=Watch)
    baking: Baking
    written: Baking
    last: dict[str, Counts] = field(default_factory=dict)
    total: Counts = field(default_factory=Counts)


class BakeWatch:
    """The watch over all bakes of a namespace."""

    def __init__(
        self,
        seen: Callable[[], Mapping[str, tuple[Observed, Evidence]]],
        write: Callable[[Baking], None],
        *,
        pages: Callable[[Observed, str], Pages] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`seen` has the last look at each service; `write` notes a bake on its service."""
        self._seen, self._write, self._clock = seen, write, clock
        self._pages = pages or _pages_of
        self._bakes: dict[tuple[str, str, float], _Bake] = {}
        self._client = httpx.Client(trust_env=False, verify=NO_AUTHORITIES)
        self._log = structlog.get_logger()

    def run(self, stop: threading.Event, leads: Callable[[], bool]) -> None:
        """Watches until `stop` is set, while this process leads."""
        while not stop.wait(LOOK_S):
            if leads():
                self.look()
            else:
                self._bakes.clear()

    def look(self) -> None:
        """Looks once at every bake that is not over."""
        for name, (observed, evidence) in self._seen().items():
            if observed.baking is None or observed.baking.state != "baking":
                continue
            try:
                self._look_at(observed.baking, observed, evidence)
            except (ShipliftError, Conflict) as error:  # the next look tries again
                self._log.warning("failed", part="bake", service=name, error=str(error))

    def _look_at(self, noted: Baking, observed: Observed, evidence: Evidence) -> None:
        key = (noted.model, noted.package, noted.requested_at)
        known = self._bakes.setdefault(key, _Bake(baking=noted, written=noted))
        if observed.spec is None or observed.spec.revision != noted.package:
            serves = observed.spec.revision if observed.spec else "nothing"
            known.baking = noted.model_copy(update={"state": "ended", "reason": f"{serves} serves instead"})
        elif known.baking.state == "baking":
            known.baking = known.watch.after(known.baking, self._read(known, observed, evidence))
        if known.baking.state != "baking" or _is_due(known):
            self._write(known.baking)
            known.written = known.baking
            self._log.info("bakes", service=observed.name, said=known.baking.sentence)

    def _read(self, known: _Bake, observed: Observed, evidence: Evidence) -> BakeReading:
        baking, cluster = known.baking, observed.cluster
        name, at_s = serving_name(baking.model), self._clock()
        pages = self._pages(observed, baking.package)
        readings = {pod: reading_of(page, name, baking.version, at_s) for pod, page in pages.items()}
        counts = {pod: Counts(answered=each.answered or 0, failed=each.failed or 0) for pod, each in readings.items()}
        more = since(known.last, {pod: each for pod, each in counts.items() if pod in known.last})
        known.total = Counts(answered=known.total.answered + more.answered, failed=known.total.failed + more.failed)
        known.last = {**known.last, **counts}
        return BakeReading(
            at_s=at_s,
            answered=known.total.answered if readings else None,
            failed=known.total.failed if readings else None,
            latency_ms=_slowest(readings) if readings else None,
            wrong=_wrong(observed, evidence, baking.package),
            values=values_of(cluster.prometheus, baking.alarms, self._client),
        )


def _is_due(known: _Bake) -> bool:
    told = (known.written.unknown, known.baking.unknown)
    watched = known.baking.watched_s - known.written.watched_s
    silent = known.baking.silent_s - known.written.silent_s
    return told[0] != told[1] or max(watched, silent) >= _SAVE_S


def _pages_of(observed: Observed, revision: str) -> Pages:
    return {pod: page for _, pod, page in pages_of(observed, revision, _READ_S)}


def _slowest(readings: Mapping[str, BakeReading]) -> dict[float, float]:
    """The quantiles of the slowest pod: clients meet every pod."""
    found: dict[float, float] = {}
    for reading in readings.values():
        for quantile, ms in (reading.latency_ms or {}).items():
            found[quantile] = max(ms, found.get(quantile, 0.0))
    return found


def _wrong(observed: Observed, evidence: Evidence, revision: str) -> str | None:
    """What is wrong with a pod's answers to the heartbeat; empty if nothing is, None if no pod has been asked."""
    pods = {pod.name for pod in observed.pods_of(revision)}
    beats = [beat for name, beat in evidence.beats.items() if name in pods]
    if not beats:
        return None
    return next((beat.message for beat in beats if beat.misses >= _WRONG_BEATS), "")
