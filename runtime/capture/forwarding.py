"""Sends what a pod's server captures to the process that keeps it. A container beside the server; it has no disk.

    python -m shiplift.runtime.capture.forwarding --to http://captured.shiplift.svc:8008 --model digits DIGEST 0.1

The two containers share the folder of rings, which is memory. What was sent stays in the ring until the keeper has it
on its disk, and a part is named by where it was: a process that is killed at any line loses nothing and sends nothing
twice. While the keeper is away, rings fill; what finds no room then is counted and dropped, and requests go on. It ends
after the server, and sends the rest first.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from shiplift.runtime.base.daemon import stop_on_signals
from shiplift.runtime.base.text import printable
from shiplift.runtime.capture.parts import SENDER, NotKept, Part, Sender, Unreadable
from shiplift.runtime.capture.ring import CAPACITY, FOLDER, Ring, RingCounters

LOOK_S, FLUSH_S = 0.25, 5.0
_TRY_AGAIN_S = 10.0
_STALLED_S = 10.0  # by then a server has written a record, or was killed before
_LAST_S = 15.0  # for what is left when the pod ends


class Sending(Protocol):
    """Takes parts, as `Sender` does."""

    def send(self, part: Part, records: bytes) -> int:
        """See `Sender.send`."""


@dataclass(frozen=True, kw_only=True)
class Captured:
    """A model of the pod's server: its served name, its package's digest, and the share of requests that is kept."""

    model: str
    package: str
    share: float


@dataclass(kw_only=True)
class _Open:
    what: Captured
    ring: Ring
    waits_since: float = 0.0
    fails_until: float = 0.0
    stalled_at: int = -1  # the tail at which an unfinished record was seen first
    stalled_since: float = 0.0
    sent: RingCounters = field(default_factory=RingCounters)
    told: str = ""


class Forwarder:
    """The forwarder of one server's rings in the folder `rings`; `steady` is a clock that never jumps."""

    def __init__(
        self,
        rings: Path,
        models: Sequence[Captured],
        to: Sending,
        *,
        capacity: int = CAPACITY,
        flush_s: float = FLUSH_S,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._to, self._flush_s, self._steady = to, flush_s, steady
        folder = os.open(rings, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._models = [_Open(what=each, ring=Ring(folder, each.model, capacity)) for each in models]
        finally:
            os.close(folder)
        for model in self._models:
            model.sent = model.ring.counters() if model.ring.tail else model.sent  # of a forwarder before this one
            model.ring.set_share(model.what.share)

    def look(self, *, last: bool = False) -> bool:
        """Sends what waits for long, or is much; with `last`, all of it. Returns whether nothing is left to send."""
        done = [self._forward(model, last=last) for model in self._models]
        return all(done)

    def _forward(self, model: _Open, *, last: bool) -> bool:
        ring, now = model.ring, self._steady()
        waiting = ring.head - ring.tail
        if not waiting:
            model.waits_since = 0.0
            return True
        model.waits_since = model.waits_since or now
        due = waiting >= ring.capacity // 4 or now - model.waits_since >= self._flush_s
        if not last and (now < model.fails_until or not due):
            return False
        tail = ring.tail
        try:
            records, after = ring.waiting(ring.capacity)
            if after == tail:
                return self._wait_for(model, tail, now)
            counted = ring.counters()
            ring.advance(self._to.send(_part(model, tail, after, counted), b"".join(records)) if records else after)
            model.sent = counted if records else model.sent
        except NotKept as error:
            model.fails_until = now + _TRY_AGAIN_S
            self._say(model, f"what {model.what.model} captures waits, and is dropped once there is no room: {error}")
            return False
        except (ValueError, Unreadable) as error:  # a server that was taken over wrote it
            ring.empty()
            self._say(model, f"what {model.what.model} captured can't be read: {error}")
            return True
        model.waits_since = model.fails_until = 0.0
        self._say(model, "")
        return True

    def _wait_for(self, model: _Open, tail: int, now: float) -> bool:
        """Waits for a record that is being written; a server that was killed meanwhile won't finish it."""
        if model.stalled_at != tail:
            model.stalled_at, model.stalled_since = tail, now
        elif now - model.stalled_since >= _STALLED_S:
            model.ring.empty()
        return False

    @staticmethod
    def _say(model: _Open, what: str) -> None:
        """Says what changed, once."""
        if what and what != model.told:
            print(printable(what, limit=300), file=sys.stderr, flush=True)
        model.told = what


def _part(model: _Open, tail: int, after: int, now: RingCounters) -> Part:
    return Part(
        model=model.what.model,
        package=model.what.package,
        identity=model.ring.identity,
        tail=tail,
        after=after,
        captured=max(0, now.captured - model.sent.captured),
        dropped=max(0, now.dropped - model.sent.dropped),
        too_large=max(0, now.too_large - model.sent.too_large),
    )


def main() -> None:
    """Forwards until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--to", required=True, help="The keeper's address.")
    parser.add_argument("--model", nargs=3, action="append", required=True, metavar=("NAME", "DIGEST", "SHARE"))
    options = parser.parse_args()
    stop = stop_on_signals()
    models = [Captured(model=name, package=digest, share=float(share)) for name, digest, share in options.model]
    forwarder = Forwarder(Path(FOLDER), models, Sender(options.to, os.environ.get(SENDER, "")))
    while not stop.wait(LOOK_S):
        forwarder.look()
    ends = time.monotonic() + _LAST_S
    while not forwarder.look(last=True) and time.monotonic() < ends:
        time.sleep(LOOK_S)


if __name__ == "__main__":
    main()
