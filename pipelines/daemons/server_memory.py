"""How much of the machine's memory production's server uses, and how much it may use.

Its /tmp and /dev/shm are file systems in memory that the kernel limits. They are in no process's memory, so they are
counted here. A page of /dev/shm that a process has mapped counts twice.
"""

import contextlib
import os
from pathlib import Path

from shiplift.pipelines.engines.local import site_file
from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.confinement.watch import worker
from shiplift.runtime.host.processes import memory_mb, resident_mb, total_memory_mb

_SHARE = 0.75  # of the machine's memory, unless its owner says how much
_IN_MEMORY = ("tmp", "dev/shm")


def limit_mb(home: Path) -> int:
    """The memory that the server of a home may use, in MiB; the default where `site.yaml` can't be read."""
    with contextlib.suppress(ShipliftError, OSError):
        if own := site_file.read(home).server.memory_mb:
            return own
    return int(_SHARE * total_memory_mb())


def used_mb(pid: int, *, limit: int) -> float:
    """The memory of a confined server, by the pid that it was started with, in MiB.

    Below `limit` it can be more than it is: pages that its processes share are told apart only near the limit, because
    that takes the kernel tens of milliseconds per GiB.
    """
    confined = worker(pid)
    files = sum(_files_mb(Path(f"/proc/{confined}/root") / name, Path("/") / name) for name in _IN_MEMORY)
    resident = resident_mb(confined)
    return files + (resident if files + resident <= limit else memory_mb(confined))


def _files_mb(folder: Path, ours: Path) -> float:
    """What the files in a server's private file system take; 0 if it is not a private one."""
    with contextlib.suppress(OSError):
        if folder.stat().st_dev != ours.stat().st_dev:
            usage = os.statvfs(folder)
            return (usage.f_blocks - usage.f_bfree) * usage.f_frsize / 2**20
    return 0.0
