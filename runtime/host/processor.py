"""This machine's processor: what decides which code is fast on it, and where figures measured on it hold."""

from functools import cache
from pathlib import Path


@cache
def cpu_flags() -> frozenset[str]:
    """This processor's features, as Linux names them."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return frozenset(line.split(":", 1)[1].split())
    return frozenset()


def has_vnni() -> bool:
    """Whether 8-bit dot products accumulate in 32 bits in one instruction: without it, U8S8 can saturate in 16."""
    return bool(cpu_flags() & {"avx512_vnni", "avx_vnni"})
