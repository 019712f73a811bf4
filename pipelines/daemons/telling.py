"""Tells a cluster's targets what happened to its releases, through the same outbox and delivery as a machine.

Workflows are the events' memory: they say when a release began and how it ended, for as long as Argo keeps them, and an
event made of them has the same id each time. So the outbox is a scratch file. What has to outlive this process is how
far each target is: a ConfigMap has the time of the newest event that it got, and which ones it got shortly before,
since the cluster may tell of one late. What was sent after the last turn is sent again after a restart, with the same
id.
"""

import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx

from shiplift.pipelines.engines.argo.model_events import Link, events_of
from shiplift.pipelines.engines.argo.told import TargetPosition, ToldTargets
from shiplift.pipelines.engines.argo.workflows import Run
from shiplift.runtime.events.delivery import EventDelivery
from shiplift.runtime.events.outbox import Outbox
from shiplift.runtime.events.targets import EventSettings

_PROMPT_S = 2.0  # that a turn waits for deliveries; others are recorded in the next turn
_LATE_S = 600.0  # by which the end of a release may be seen later than that of another that ended after it


class Telling:
    """Delivers the events of a cluster's releases to its targets. `source` is the URI of the installation."""

    def __init__(
        self,
        settings: EventSettings,
        source: str,
        targets: ToldTargets,
        tell: Callable[[str], object],
        *,
        transport: httpx.BaseTransport | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        folder = Path(tempfile.mkdtemp(prefix="shiplift-events-"))
        self._settings, self._targets, self._clock = settings, targets, clock
        self._outbox = Outbox(folder)
        self._delivery = EventDelivery(folder, source, tell, transport=transport, clock=clock)
        self._known: frozenset[str] = frozenset()
        self._at_start: dict[str, TargetPosition] | None = None
        self._recorded: dict[str, TargetPosition] = {}

    def turn(self, runs: Mapping[str, Run], link: Link) -> None:
        """Adds what the Workflows newly tell, lets targets get what they wait for, and records how far they are.

        Raises:
            NotFound: the ConfigMap does not exist.
            Temporary: the cluster does not respond, or the disk is full.
        """
        before = self._targets.read() if self._at_start is None else self._at_start
        events = events_of(runs, link)
        for event in events:
            if event.id not in self._known:
                self._outbox.add(event)
        self._known = frozenset(event.id for event in events)
        if self._at_start is None:
            self._begin(before)
        self._delivery.look(self._settings)
        self._delivery.wait(_PROMPT_S)
        self._record(before)

    def _begin(self, before: dict[str, TargetPosition]) -> None:
        for target in self._settings.targets:
            told = before.get(target.name)
            if told:
                self._outbox.begin(target.name, after=told.until - _LATE_S, but=told.recent)
        self._at_start = self._recorded = before

    def _record(self, before: Mapping[str, TargetPosition]) -> None:
        now = {target.name: self._told(target.name, before.get(target.name)) for target in self._settings.targets}
        changed: dict[str, TargetPosition | None] = {
            name: told for name, told in now.items() if self._recorded.get(name) != told
        }
        changed |= dict.fromkeys(self._recorded.keys() - now.keys())
        if changed:
            self._targets.write(changed)
            self._recorded = now

    def _told(self, target: str, at_start: TargetPosition | None) -> TargetPosition:
        place, recorded = self._outbox.place(target), self._recorded.get(target)
        until, recent = self._outbox.got(target, within_s=_LATE_S)
        return TargetPosition(
            target=target,
            seq=0,
            tries=place.tries,
            next_at=place.next_at,
            problem=place.problem,
            waiting=place.waiting,
            dead=place.dead + (at_start.dead if at_start else 0),
            until=max(until, recorded.until if recorded else self._clock()),
            recent=recent,
        )
