"""What the processes of a pipeline's step use together: the worker, and whatever it has started.

Process: Triton's Python backend, as `step_use.py`.
Python: the server's
Packages: none
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_SHARED_MB = 256  # of libraries, which count in each process


@dataclass(frozen=True)
class Use:
    """Resident memory in MiB, CPU time so far in seconds, and the number of processes."""

    memory_mb: int = 0
    cpu_s: float = 0.0
    processes: int = 0


def children(parent: int) -> Iterator[int]:
    """The processes whose parent is this one; none where /proc does not show them."""
    return (pid for pid, (above, _) in _all().items() if above == parent)


def use_of(pids: set[int]) -> Use:
    """What these processes and their descendants use."""
    everyone = _all()
    family, found = set(), pids & everyone.keys()
    while found:
        family |= found
        found = {pid for pid, (parent, _) in everyone.items() if parent in family} - family
    fields = [everyone[pid][1] for pid in family]
    ticks = sum(int(each[at]) for each in fields for at in (11, 12, 13, 14))  # with those of children that ended
    pages = sum(int(each[21]) for each in fields)
    return Use(pages * os.sysconf("SC_PAGE_SIZE") >> 20, ticks / os.sysconf("SC_CLK_TCK"), len(family))


def beyond(use: Use, limits: Mapping[str, Any], spent_s: float) -> str:
    """Which of a pool's limits is exceeded, empty if none; a call has used `spent_s` of CPU time."""
    memory_mb, processes, cpu_s = limits["memory_mb"] + _SHARED_MB, limits["processes"], limits["cpu_s"]
    if use.memory_mb > memory_mb:
        return f"its processes used {use.memory_mb} MiB, the limit is {memory_mb} MiB"
    if use.processes > processes:
        return f"it had {use.processes} processes, the limit is {processes}"
    return f"it used over {cpu_s:g} s of CPU time, its limit" if cpu_s and spent_s > cpu_s else ""


def _all() -> dict[int, tuple[int, list[str]]]:
    """Each process's parent, and the fields of its /proc/PID/stat after the name."""
    found = {}
    with contextlib.suppress(OSError):
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{entry}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
                found[int(entry)] = int(fields[1]), fields
    return found
