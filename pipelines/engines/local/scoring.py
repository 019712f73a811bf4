"""Scores a dataset on this machine, within the command: its events as they happen, and the result at the end."""

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from shiplift.pipelines.engines.interruption import Interrupted
from shiplift.pipelines.engines.walk import Walk
from shiplift.pipelines.offline import PREDICT
from shiplift.runtime.base.errors import Cancelled
from shiplift.runtime.offline.output import Output
from shiplift.runtime.records.offline import OfflineOrder, OfflineResult
from shiplift.runtime.records.release import Event
from shiplift.runtime.records.site import Site

_CLEAN_UP_S = 15.0


@dataclass(kw_only=True)
class _Scoring(Walk):
    """A walk in a thread, which is told to stop by an event."""

    events: "queue.SimpleQueue[Event | None]" = field(default_factory=queue.SimpleQueue)

    def tell(self, event: Event) -> None:
        self.events.put(event)

    def run(self) -> None:
        """Walks; None among the events is the end."""
        try:
            self.over(PREDICT)
        finally:
            self.events.put(None)


def score(site: Site, order: OfflineOrder) -> Iterator[Event | OfflineResult | None]:
    """Yields what happens, then the result. A caller that stops listening ends it; what was scored stays.

    Raises:
        ShipliftError: what a step raised.
        OutputTaken: another command writes to the output.
    """
    stop = threading.Event()

    def check() -> None:
        if stop.is_set():
            raise Interrupted(Cancelled("scoring was stopped", do="Run the same command again to go on."))

    known: dict[str, Any] = {Site.parameter(): site, OfflineOrder.parameter(): order}
    walk = _Scoring(known=known, ahead=(), check=check)
    with Output(order.output).locked():
        thread = threading.Thread(target=walk.run, daemon=True)
        thread.start()
        try:
            yield from _until_end(walk.events)
        finally:
            stop.set()
            thread.join(_CLEAN_UP_S)
    if walk.last and walk.last.failure:
        raise walk.last.failure.error()
    yield walk.known[OfflineResult.parameter()]


def _until_end(events: "queue.SimpleQueue[Event | None]") -> Iterator[Event | None]:
    while True:
        try:
            event = events.get(timeout=0.2)
        except queue.Empty:
            yield None
            continue
        if event is None:
            return
        yield event
