"""How a step says how far it is, without knowing who listens, and how long it spent measuring.

Both are context variables: an engine sets the listener around a step, and a step called by hand has none.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str, float | None], None]

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)
_measured: ContextVar[list[float] | None] = ContextVar("measured", default=None)


def progress(message: str, done: float | None = None) -> None:
    """Tells the engine what is going on; `done` is the part finished, from 0 to 1, where it is known."""
    listener = _listener.get()
    if listener is not None:
        listener(message, done)


@contextmanager
def listening(listener: Listener | None) -> Iterator[list[float]]:
    """Around a step: its progress goes to `listener`; gives the list that collects its measuring times, in seconds."""
    spent: list[float] = []
    heard, timed = _listener.set(listener), _measured.set(spent)
    try:
        yield spent
    finally:
        _listener.reset(heard)
        _measured.reset(timed)


@contextmanager
def measuring() -> Iterator[None]:
    """Around exporting, calibrating or a measurement window: time that is the model's, not Shiplift's overhead."""
    started = time.monotonic()
    try:
        yield
    finally:
        spent = _measured.get()
        if spent is not None:
            spent.append(time.monotonic() - started)
