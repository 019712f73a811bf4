"""The CPU time that other processes take on the cores of this one. What is measured meanwhile is too slow."""

import contextlib
import os
from collections.abc import Collection
from pathlib import Path

import psutil

from shiplift.runtime.host.processor import cpu_share

_STAT = Path("/proc/stat")
_BUSY = (0, 1, 2, 5, 6, 7)  # user, nice, system, irq, softirq, steal; guests' time is part of user's


def others_s(*servers: int) -> float | None:
    """The seconds that others have computed so far on this process's cores; only differences have a meaning.

    Others are not: this process, its children that have ended, and `servers` with their descendants. Time that the
    hypervisor gave to other machines (steal) counts. None within a CPU quota that is less than the cores: there, others
    may be busy on cores that this process could not have used anyway.
    """
    cores = os.sched_getaffinity(0)
    if cpu_share() < len(cores):
        return None
    own = os.times()
    return busy_s(cores) - sum(own[:4]) - sum(_family_s(pid) for pid in servers)


def busy_s(cores: Collection[int], stat: Path = _STAT) -> float:
    """The seconds for which these cores together have not been idle since the machine started."""
    ticks = 0
    for line in stat.read_text().splitlines():
        name, *counts = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            ticks += sum(int(counts[at]) for at in _BUSY if at < len(counts))
    return ticks / os.sysconf("SC_CLK_TCK")


def _family_s(pid: int) -> float:
    """The CPU time of a process and its descendants, with those that ended and were waited for."""
    total = 0.0
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for member in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                total += sum(member.cpu_times()[:4])
    return total
