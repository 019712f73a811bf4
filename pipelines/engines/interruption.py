"""Signals in a stage, on both engines: what ends it from outside, and what must not.

A step calls libraries that catch `Exception` and go on. What ends a stage from outside therefore is no `Exception`; it
becomes the error it carries where the attempt is recorded. Only the main thread can set signal handlers: in any other,
every block here changes nothing.
"""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from shiplift.runtime.base.errors import Cancelled, DeadlineExceeded, ShipliftError

_ENDING = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """A signal came: the stage is to clean up and end with `error`."""

    def __init__(self, error: ShipliftError) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def interruptible(
    cancelled: Callable[[signal.Signals], Cancelled], on_signal: Callable[[int], None] = lambda _: None
) -> Iterator[Callable[[], None]]:
    """The first SIGINT or SIGTERM raises `Interrupted` with the error that `cancelled` makes; a later one is ignored.

    `on_signal` hears the first one's number. Gives a function that raises it again: Python drops an exception that
    comes inside a callback of the interpreter's own, such as a finalizer.
    """
    raised: list[Interrupted] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        for each in _ENDING:
            signal.signal(each, signal.SIG_IGN)
        on_signal(number)
        raised.append(Interrupted(cancelled(signal.Signals(number))))
        raise raised[0]

    def check() -> None:
        if raised and sys.exc_info()[0] is None:
            raise raised[0]

    with _handling(stop, *_ENDING):
        yield check


@contextmanager
def shielded() -> Iterator[None]:
    """SIGINT and SIGTERM change nothing: not between traffic and aliases, and not while a release is concluded."""
    with _handling(signal.SIG_IGN, *_ENDING):
        yield


@contextmanager
def deadline(stage: str, seconds: int) -> Iterator[None]:
    """A step that hangs is interrupted after so many seconds, with `DeadlineExceeded`."""

    def late(_number: int, _frame: FrameType | None) -> None:
        raise Interrupted(DeadlineExceeded(f"stage {stage} took over {seconds} s", do="See the release's log."))

    with _handling(late, signal.SIGALRM) as handled:
        if handled:
            signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            if handled:
                signal.setitimer(signal.ITIMER_REAL, 0)


@contextmanager
def _handling(handler: Any, *numbers: signal.Signals) -> Iterator[bool]:
    """Sets a handler for the time of the block; gives whether it could."""
    if threading.current_thread() is not threading.main_thread():
        yield False
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield True
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
