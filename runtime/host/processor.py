"""This machine's CPU. Its features decide which code is fast; its cores, too, decide where measurements are valid."""

import contextlib
import os
from collections.abc import Collection
from functools import cache
from pathlib import Path

from shiplift.runtime.guest.pod.meter import cpu_share, usable_cores

__all__ = ["cpu_flags", "cpu_name", "cpu_share", "has_vnni", "steady_cores", "usable_cores"]

_CAPACITY = 1024  # of the fastest core, as Linux counts
_EFFICIENT = 512  # of those that Intel calls efficient, where Linux does not say
_ALIKE = 0.75  # of the fastest core's capacity: such cores finish their part of a batch at about the same time


@cache
def cpu_flags() -> frozenset[str]:
    """This CPU's feature flags, as Linux names them."""
    return frozenset(_told("flags").split())


@cache
def cpu_name() -> str:
    """This CPU's name, as its maker gave it; empty where Linux knows none."""
    return _told("model name")


def _told(field: str) -> str:
    """What Linux says of the first core; empty if it does not have this field."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(field):
            return line.split(":", 1)[1].strip()
    return ""


def has_vnni() -> bool:
    """Whether the CPU accumulates 8-bit dot products in 32 bits. Without VNNI, U8S8 can saturate at 16 bits."""
    return bool(cpu_flags() & {"avx512_vnni", "avx_vnni"})


def steady_cores() -> int:
    """The cores that compute at full speed all the time, at least 1; `usable_cores` counts the others, too."""
    return steady(cpu_share(), core_capacities(os.sched_getaffinity(0)))


def steady(share: float, capacities: Collection[int]) -> int:
    """The whole cores of a quota (`share`) that are about as fast as the fastest, of cores of these capacities.

    With a quota of 1.5 CPUs, two threads stand still for a part of each 100 ms, and of cores of two kinds, the threads
    on the fast ones wait for those on the slow ones. That costs no throughput, or little, but it makes answers late.
    """
    fastest = max(capacities, default=_CAPACITY)
    fast = sum(capacity >= _ALIKE * fastest for capacity in capacities) or 1
    return max(1, min(int(share), fast))


def core_capacities(cores: Collection[int], devices: Path = Path("/sys/devices")) -> list[int]:
    """How fast each of these cores is, from 1 to 1024: by Linux's own count, or by Intel's two kinds of cores."""
    efficient = set[int]()
    with contextlib.suppress(OSError, ValueError):
        efficient = _listed((devices / "cpu_atom/cpus").read_text())
    found = []
    for core in sorted(cores):
        capacity = _EFFICIENT if core in efficient else _CAPACITY
        with contextlib.suppress(OSError, ValueError):
            capacity = int((devices / f"system/cpu/cpu{core}/cpu_capacity").read_text()) or capacity
        found.append(capacity)
    return found


def _listed(text: str) -> set[int]:
    """The numbers in a list of Linux's, such as `0-3,8`."""
    ranges = [part.partition("-") for part in text.strip().split(",") if part]
    return {number for low, _, high in ranges for number in range(int(low), int(high or low) + 1)}
