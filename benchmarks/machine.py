"""What the benchmarks ask of the machine they run on, and how they wait for it."""

import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def processor() -> str:
    """The processor's name, as Linux tells it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = next((line for line in lines if line.startswith("model name")), "")
    return named.partition(":")[2].strip() or platform.processor() or platform.machine()


def until(look: Callable[[], T | None], what: str, *, seconds: float = 60, every_s: float = 0.1) -> T:
    """What `look` gives once it is true.

    Raises:
        TimeoutError: it was not within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:g} s for {what}")
        time.sleep(every_s)
    return found
