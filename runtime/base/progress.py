"""How a step reports its progress and its measuring time, without knowing who listens.

Both use context variables: an engine sets the listener around a step; a step that is called directly has none.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str, float | None], None]

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)
_measured: ContextVar[list[float] | None] = ContextVar("measured", default=None)


def progress(message: str, done: float | None = None) -> None:
    """Reports progress to the engine; `done` is the finished share, from 0 to 1, or None if unknown."""
    listener = _listener.get()
    if listener is not None:
        listener(message, done)


@contextmanager
def listening(listener: Listener | None) -> Iterator[list[float]]:
    """Sends a step's progress to `listener`; yields the list that collects its measuring times, in seconds."""
    spent: list[float] = []
    listener_token, measured_token = _listener.set(listener), _measured.set(spent)
    try:
        yield spent
    finally:
        _listener.reset(listener_token)
        _measured.reset(measured_token)


@contextmanager
def measuring() -> Iterator[None]:
    """Times an export, a calibration or a measurement window: work that the model needs, not Shiplift's overhead."""
    started = time.monotonic()
    try:
        yield
    finally:
        spent = _measured.get()
        if spent is not None:
            spent.append(time.monotonic() - started)
