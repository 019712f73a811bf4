"""How long a model may take for one answer, where it runs in this process and can't be stopped.

A graph may answer some sizes of batches and loop for ever at others, in C. So whoever asks says what it asks
(`answering`), and a thread looks after it: `impatient` names what to call with a sentence for people.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LOOK_S = 0.25
_asked: dict[int, tuple[float, int]] = {}  # by thread: since when, and how many samples


@contextmanager
def answering(samples: int) -> Iterator[None]:
    """Says that a model is being asked for a batch of `samples`, as long as the context lasts."""
    thread = threading.get_ident()
    _asked[thread] = time.monotonic(), samples
    try:
        yield
    finally:
        _asked.pop(thread, None)


def impatient(limit_s: float, give_up: Callable[[str], None]) -> None:
    """From now on calls `give_up` with the reason once an answer has taken more than `limit_s` seconds."""
    threading.Thread(target=_look, args=(limit_s, give_up), daemon=True).start()


def _look(limit_s: float, give_up: Callable[[str], None]) -> None:
    while True:
        time.sleep(_LOOK_S)
        for since, samples in tuple(_asked.values()):
            if time.monotonic() - since > limit_s:
                give_up(f"took over {limit_s:g} s to answer a batch of {samples}")
                return
