"""Signals that reach a stage, on both engines: which of them interrupt it.

Steps call libraries that catch `Exception` and carry on, so an interruption is a `BaseException`. The attempt records
the error that it carries. Python lets only the main thread set signal handlers: in any other thread these context
managers do nothing.
"""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from shiplift.runtime.base.errors import DeadlineExceeded, ShipliftError

GRACE_S = 60  # how long a stage may clean up after its deadline before its process is killed from outside
_ENDING = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """A signal arrived: the stage must clean up and end with `error`."""

    def __init__(self, error: ShipliftError) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def interruptible(
    cancelled: Callable[[signal.Signals], ShipliftError], on_signal: Callable[[int], None] = lambda _: None
) -> Iterator[Callable[[], None]]:
    """The first SIGINT or SIGTERM raises `Interrupted` with the error from `cancelled`; later signals are ignored.

    Later ones must not interrupt the clean-up that the first began. `on_signal` is called with the first signal's
    number. Yields a function that raises the exception again: if the signal arrives while Python runs one of its own
    callbacks, such as a finalizer, Python drops the exception, so a walk calls the function between stages.
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
    """Ignores SIGINT and SIGTERM while traffic and aliases move, and while a release is concluded.

    Interrupted in between, production would serve one version and the registry would name another.
    """
    with _handling(signal.SIG_IGN, *_ENDING):
        yield


@contextmanager
def deadline(stage: str, seconds: int) -> Iterator[None]:
    """Interrupts a step that takes longer than `seconds`, with `DeadlineExceeded`."""

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
    """Sets a signal handler for the duration of the block; yields False where that is impossible."""
    if threading.current_thread() is not threading.main_thread():
        yield False
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield True
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
