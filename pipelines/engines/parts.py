"""The parts of a stage, from what it says while it works: nobody has to time a stage twice."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from shiplift.runtime.base.progress import Listener
from shiplift.runtime.base.text import printable
from shiplift.runtime.records.release import StagePart

_MOST = 32  # parts of a stage: a report stays small however often a stage says something
_CHARACTERS = 80
_COUNTED = re.compile(r"[,:]?\s+\d[\d.,]*(?=[\s:,]|$).*|:.*", re.DOTALL)  # from the first number or colon on


@dataclass
class _Part:
    name: str
    since: float
    until: float
    times: int = 1


class Parts:
    """Listens to a stage and passes on what it says. What differs only in numbers or details is one part."""

    def __init__(self, listener: Listener | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._listener, self._clock = listener, clock
        self._started = clock()
        self._parts: list[_Part] = []

    def __call__(self, message: str, done: float | None) -> None:
        """Notes a message, and passes it on."""
        self._note(message)
        if self._listener is not None:
            self._listener(message, done)

    def ended(self) -> tuple[StagePart, ...]:
        """The parts of a stage that ends now."""
        self._close(self._clock())
        return tuple(
            StagePart(
                name=part.name,
                after_s=round(part.since - self._started, 3),
                seconds=round(part.until - part.since, 3),
                times=part.times,
            )
            for part in self._parts
        )

    def _note(self, message: str) -> None:
        now, name = self._clock(), part_name(message)
        last = self._parts[-1] if self._parts else None
        if last and (last.name == name or len(self._parts) == _MOST):
            last.times += 1
            return
        self._close(now)
        self._parts.append(_Part(name=name, since=now, until=now))

    def _close(self, now: float) -> None:
        if self._parts:
            self._parts[-1].until = now


def part_name(message: str) -> str:
    """What a message is about, without its numbers and details: `trial 3: fp32 on OpenVINO` is `trial`."""
    return printable(_COUNTED.sub("", message).strip() or message, limit=_CHARACTERS)
