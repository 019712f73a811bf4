"""This machine's CPU. Its features decide which code is fast; its cores, too, decide where measurements are valid."""

from functools import cache
from pathlib import Path

from shiplift.runtime.guest.pod.meter import cpu_share, usable_cores

__all__ = ["cpu_flags", "cpu_share", "has_vnni", "usable_cores"]


@cache
def cpu_flags() -> frozenset[str]:
    """This CPU's feature flags, as Linux names them."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return frozenset(line.split(":", 1)[1].split())
    return frozenset()


def has_vnni() -> bool:
    """Whether the CPU accumulates 8-bit dot products in 32 bits. Without VNNI, U8S8 can saturate at 16 bits."""
    return bool(cpu_flags() & {"avx512_vnni", "avx_vnni"})
