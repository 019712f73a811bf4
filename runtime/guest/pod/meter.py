"""Reports a server's memory and hardware over HTTP, from a small process next to it.

    python3 meter.py ADDRESS:PORT

A search measures memory after every trial, and a cluster's metrics are up to a minute old. So the pod of a bench runs
this process as a child of its server.

Process: one of its own in the server's container, as `meter.py`.
Python: the image's
Packages: none
"""

import contextlib
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path, PurePosixPath
from typing import Any

_PROC = Path("/proc")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SMI = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")


def memory_mb(root: int, *, without: int) -> float:
    """The proportional set size of a process and its descendants, in MiB, without the process `without`."""
    return sum(_bytes(pid) for pid in _family(root) if pid != without) / 2**20


def hardware() -> list[object]:
    """The hardware for which measurements here are valid: the CPU's features, its cores, and the GPU, if any."""
    match = re.search(r"^(?:flags|Features)\s*:(.*)$", (_PROC / "cpuinfo").read_text(), re.MULTILINE)
    return [sorted(match.group(1).split()) if match else [], cpu_share(), _gpu()]


def usable_cores() -> int:
    """The threads that can run at once here. Part of a core counts as a core, as Java and Go count it."""
    return max(1, math.ceil(cpu_share()))


def cpu_share(own: Path = _PROC / "self/cgroup", groups: Path = Path("/sys/fs/cgroup")) -> float:
    """The cores whose time this process gets: those that it may run on, or less where a cgroup's quota is less.

    A container with a limit of 1.5 CPUs may run on each of its node's 64 cores. Its quota is 150 ms in each 100 ms. On
    all cores that lasts 2.3 ms, and then the container stands still. Reads the quotas of cgroup v2 and v1, from this
    process's group up to the root. In a container the root is its own group.
    """
    share = float(len(os.sched_getaffinity(0)))
    with contextlib.suppress(OSError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                share = min([share, *_quotas(groups, path, ("cpu.max",))])
            elif "cpu" in controllers.split(","):
                names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
                for mounted in {controllers, "cpu", "cpu,cpuacct"}:
                    share = min([share, *_quotas(groups / mounted, path, names)])
    return round(share, 3)


def _quotas(root: Path, path: str, names: tuple[str, ...]) -> Iterator[float]:
    """The quotas of a group and of those around it, in cores. `max`, -1 and a missing file mean that there is none."""
    for group in (PurePosixPath(path), *PurePosixPath(path).parents):
        folder = root / str(group).lstrip("/")
        with contextlib.suppress(OSError, ValueError):
            quota, period = " ".join((folder / name).read_text() for name in names).split()
            if int(quota) > 0 and int(period) > 0:
                yield int(quota) / int(period)


def _family(root: int) -> Iterator[int]:
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):  # the process may have ended
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    pending = [root]
    while pending:
        pid = pending.pop()
        pending += children.get(pid, [])
        yield pid


def _bytes(pid: int) -> int:
    """A process's proportional set size, or its resident memory if the kernel does not report that."""
    with contextlib.suppress(OSError):
        match = re.search(r"^Pss:\s+([0-9]+) kB$", (_PROC / str(pid) / "smaps_rollup").read_text(), re.MULTILINE)
        if match:
            return int(match.group(1)) * 1024
    with contextlib.suppress(OSError, IndexError):
        return int((_PROC / str(pid) / "statm").read_text().split()[1]) * _PAGE
    return 0


def _gpu() -> str:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        completed = subprocess.run(_SMI, capture_output=True, text=True, timeout=30, check=False)
        if completed.returncode == 0:
            return completed.stdout.strip()
    return ""


class Meter(HTTPServer):
    """Reports the resources that the process `root` and its descendants use."""

    timeout = 1.0

    def __init__(self, address: tuple[str, int], root: int) -> None:
        super().__init__(address, _Handler)
        self.root = root
        self._hardware = hardware()

    def report(self) -> dict[str, Any]:
        """The answer to every request."""
        return {
            "memory_mb": round(memory_mb(self.root, without=os.getpid()), 1),
            "cores": usable_cores(),
            "hardware": self._hardware,
        }


class _Handler(BaseHTTPRequestHandler):
    timeout = 1.0  # of a silent connection: there is one thread
    server: Meter

    def do_GET(self) -> None:
        body = json.dumps(self.server.report()).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Logs nothing: the log belongs to the server."""


def main() -> None:
    """Answers as long as its parent lives."""
    host, _, port = sys.argv[1].rpartition(":")
    parent = os.getppid()
    with Meter((host, int(port)), parent) as meter:
        while os.getppid() == parent:
            meter.handle_request()


if __name__ == "__main__":
    main()
