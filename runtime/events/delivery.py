"""Delivers events to targets: at least once, in order, with growing pauses. No release waits for it.

A target that does not answer is tried until the event is too old; one that refuses an event for good (4xx) is tried a
few times. Then the event goes to the dead letters. Each target has a thread of its own, so none holds up another.
Tenacity is of no use here: pauses outlive the process.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import httpx

from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.base.text import printable
from shiplift.runtime.events.event import ModelEvent
from shiplift.runtime.events.formats import Letter, letter
from shiplift.runtime.events.outbox import Outbox, Place
from shiplift.runtime.events.targets import EventSettings, EventTarget

_PAUSE_S, _LONGEST_S = 1.0, 300.0
_REFUSALS = 5  # tries of an event that the target refuses for good
_LATER = (408, 425, 429)  # refusals that may end
_AHEAD = 200  # events that are read to deliver the first of them
_ANSWER_BYTES = 2048
_BATCH = 100  # deliveries to a target before its settings are read again

Tell = Callable[[str], object]


class Refusal(Exception):
    """A target did not take an event; `final`: another try is of little use."""

    def __init__(self, problem: str, *, final: bool = False) -> None:
        super().__init__(problem)
        self.problem, self.final = problem, final


class EventDelivery:
    """Delivers what a home's outbox has. `source` is the URI of the installation; `tell` gets what people must know."""

    def __init__(
        self,
        home: Path,
        source: str,
        tell: Tell,
        *,
        transport: httpx.BaseTransport | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._outbox, self._source, self._tell = Outbox(home), source, tell
        self._transport, self._clock = transport, clock
        self._pool = ThreadPoolExecutor(16, thread_name_prefix="events")
        self._busy: dict[str, Future[None]] = {}
        self._names: tuple[str, ...] | None = None

    def look(self, settings: EventSettings) -> None:
        """Lets each target that has something to get, and is not busy, get it in the background."""
        names = tuple(target.name for target in settings.targets)
        if names != self._names:
            self._outbox.retain(names)
            self._names = names
        for target in settings.targets:
            before = self._busy.get(target.name)
            if before is None or before.done():
                self._busy[target.name] = self._pool.submit(self._guarded, target, settings)

    def wait(self, timeout_s: float) -> None:
        """Waits until no delivery is under way, but not longer."""
        wait(self._busy.values(), timeout=timeout_s)

    def deliver(self, target: EventTarget, settings: EventSettings) -> None:
        """Delivers what a target waits for, until it fails or has everything."""
        for _ in range(_BATCH):
            place = self._outbox.place(target.name)
            if place.next_at > self._clock():
                return
            waiting = self._in_time(target, place, settings)
            if not waiting:
                return
            seq, event = waiting[0]
            if target.wants(event):
                try:
                    self._send(target, event)
                except Refusal as refusal:
                    self._failed(target, place, waiting[0], refusal)
                    return
            self._outbox.delivered(target.name, seq)

    def _in_time(self, target: EventTarget, place: Place, settings: EventSettings) -> list[tuple[int, ModelEvent]]:
        """The events that a target waits for, without those that are too many or too old: they are given up."""
        too_many = max(0, place.waiting - settings.waiting)
        waiting = self._outbox.events(after=place.seq, most=max(_AHEAD, too_many))
        oldest = self._clock() - settings.give_up_hours * 3600
        lost = [each for number, each in enumerate(waiting) if number < too_many or each[1].at < oldest]
        if not lost:
            return waiting
        lost = waiting[: waiting.index(lost[-1]) + 1]
        problem = place.problem or "they waited for too long"
        self._outbox.bury(target.name, _wanted(target, lost), problem)
        self._outbox.delivered(target.name, lost[-1][0])
        self._tell(f"events target {target.name!r} lost {len(lost)} events to the dead letters: {problem}")
        return waiting[len(lost) :]

    def _failed(self, target: EventTarget, place: Place, event: tuple[int, ModelEvent], refusal: Refusal) -> None:
        tries = place.tries + 1
        if refusal.final and tries >= _REFUSALS:
            self._outbox.bury(target.name, [event], refusal.problem)
            self._tell(
                f"events target {target.name!r} refused event {event[1].id}, a dead letter now: {refusal.problem}"
            )
            return
        if tries == 1:
            self._tell(f"events target {target.name!r} does not take events: {refusal.problem}. They are kept")
        pause = min(_LONGEST_S, _PAUSE_S * 2 ** min(tries - 1, 20))
        self._outbox.failed(target.name, tries, self._clock() + pause, refusal.problem)

    def _send(self, target: EventTarget, event: ModelEvent) -> None:
        """Sends an event. Redirects are not followed, and of the answer's body only the start of a 400 may be read.

        Raises:
            Refusal: the target did not take it.
        """
        try:
            written = letter(event, target, self._source, self._clock())
        except ShipliftError as error:
            raise Refusal(error.what) from error
        try:
            with (
                httpx.Client(timeout=target.timeout_s, follow_redirects=False, transport=self._transport) as client,
                client.stream("POST", written.address, content=written.body, headers=written.headers) as answer,
            ):
                status, known = answer.status_code, _knows(answer, written)
        except (httpx.HTTPError, httpx.InvalidURL) as error:  # its text may have the address, which may be a secret
            raise Refusal(f"it does not answer ({type(error).__name__})") from None
        if not (200 <= status < 300 or known):
            raise Refusal(f"it answered {status}", final=300 <= status < 500 and status not in _LATER)

    def _guarded(self, target: EventTarget, settings: EventSettings) -> None:
        try:
            self.deliver(target, settings)
        except ShipliftError as error:
            print(printable(f"events: {error}"), flush=True)


def _knows(answer: httpx.Response, written: Letter) -> bool:
    """Whether a target refuses a delivery because it has had that before."""
    if answer.status_code != httpx.codes.BAD_REQUEST or not written.known:
        return False
    start = b""
    for chunk in answer.iter_bytes(_ANSWER_BYTES):
        start += chunk
        if len(start) >= _ANSWER_BYTES:
            break
    return written.known.encode() in start


def _wanted(target: EventTarget, events: list[tuple[int, ModelEvent]]) -> list[tuple[int, ModelEvent]]:
    return [each for each in events if target.wants(each[1])]
