"""How much of the machine's memory production's server uses, and how much it may use.

Its /tmp and /dev/shm are file systems in memory, whose size the kernel limits. They belong to no process's memory, so
they are added here. A page of /dev/shm that a process has mapped counts twice.
"""

import contextlib
import os
from pathlib import Path

from shiplift.runtime.confinement.watch import worker
from shiplift.runtime.host.processes import memory_mb, resident_mb, total_memory_mb

_SHARE = 0.75  # of the machine's memory
_IN_MEMORY = ("tmp", "dev/shm")


def default_limit_mb() -> int:
    """The memory that a server may use on this machine, in MiB, unless the machine's owner says how much."""
    return int(_SHARE * total_memory_mb())


def used_mb(pid: int, *, limit: int) -> float:
    """The memory of a confined server, by the pid that it was started with, in MiB.

    Below `limit` the figure may be too high, because pages that its processes share count several times. Only above it
    are they counted once, which costs the kernel tens of milliseconds per GiB.
    """
    confined = worker(pid)
    files = sum(_files_mb(Path(f"/proc/{confined}/root") / name, Path("/") / name) for name in _IN_MEMORY)
    resident = resident_mb(confined)
    return files + (resident if files + resident <= limit else memory_mb(confined))


def _files_mb(folder: Path, ours: Path) -> float:
    """The MiB that the files in a server's private file system take; 0 if it shares the machine's."""
    with contextlib.suppress(OSError):
        if folder.stat().st_dev != ours.stat().st_dev:
            usage = os.statvfs(folder)
            return (usage.f_blocks - usage.f_bfree) * usage.f_frsize / 2**20
    return 0.0
