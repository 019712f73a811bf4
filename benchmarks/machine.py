"""Helpers of the benchmarks: the machine's processor, and waiting for a condition."""

import platform
import time
from collections.abc import Callable
from typing import TypeVar

from shiplift.runtime.host.processor import cpu_name

T = TypeVar("T")


def processor() -> str:
    """The processor's name, as Linux reports it."""
    return cpu_name() or platform.processor() or platform.machine()


def until(condition: Callable[[], T | None], description: str, *, seconds: float = 60, every_s: float = 0.1) -> T:
    """Waits until the condition returns something true, and returns it.

    Raises:
        TimeoutError: it did not within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:g} s for {description}")
        time.sleep(every_s)
    return result
