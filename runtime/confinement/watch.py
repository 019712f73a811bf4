"""Watches a confined process from outside: its messages, memory, tasks, files and run time."""

import os
import selectors
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import psutil

from shiplift.runtime.base.errors import SandboxLimit
from shiplift.runtime.confinement.messages import Take
from shiplift.runtime.confinement.policy import ConfinementPolicy, SandboxLimits

_LOOK_S, _FILES_S = 0.1, 0.5
_CHUNK = 1 << 16
_LONGEST = 3000  # characters of a path; the kernel accepts at most 4096
_ENDLESS = 1 << 62


class Pipes:
    """The pipes from a child, each with the function that takes its bytes."""

    def __init__(self, child: "subprocess.Popen[bytes]", takers: dict[int, Take]) -> None:
        self._selector = selectors.DefaultSelector()
        for descriptor, take in takers.items():
            os.set_blocking(descriptor, False)
            self._selector.register(descriptor, selectors.EVENT_READ, take)
        self._ended = os.pidfd_open(child.pid)
        self._selector.register(self._ended, selectors.EVENT_READ)

    def wait(self, seconds: float) -> None:
        """Takes what arrives within `seconds`; returns early when something arrived or the child ended."""
        for key, _ in self._selector.select(seconds):
            if key.fd != self._ended:
                self._read(key)

    def drain(self) -> None:
        """Takes what is left, without waiting for more."""
        while ready := [key for key, _ in self._selector.select(0) if key.fd != self._ended]:
            for key in ready:
                self._read(key)

    def close(self) -> None:
        """Closes the descriptors that this object opened."""
        self._selector.close()
        os.close(self._ended)

    def _read(self, key: selectors.SelectorKey) -> None:
        data = b""
        with suppress(BlockingIOError):
            data = os.read(key.fd, _CHUNK)
        if data:
            key.data(data)
        else:
            self._selector.unregister(key.fd)


def watch(
    child: "subprocess.Popen[bytes]", takers: dict[int, Take], policy: ConfinementPolicy, limits: SandboxLimits
) -> None:
    """Waits for a child and takes what it sends.

    Raises:
        SandboxLimit: the child exceeded a limit. It is still alive then.
    """
    with closing(Pipes(child, takers)) as pipes:
        deadline = time.monotonic() + limits.timeout_s
        look_at = files_at = time.monotonic() + _LOOK_S
        while child.poll() is None:
            now = time.monotonic()
            pipes.wait(max(0.0, min(look_at, deadline) - now))
            now = time.monotonic()
            if now > deadline:
                raise too_slow(limits)
            if now >= look_at:
                look_at = now + _LOOK_S
                _check_processes(child.pid, policy, limits)
            if now >= files_at:
                _check_files(child.pid, policy, limits)
                # a walk over many files is slow: the walks take at most a tenth of the time
                files_at = time.monotonic() + max(_FILES_S, 10 * (time.monotonic() - now))
        pipes.drain()


def too_slow(limits: SandboxLimits) -> SandboxLimit:
    """The error for a child that took too long."""
    return limits.exceeded("timeout_s", f"took over {limits.timeout_s} s")


def workers(pid: int) -> list[psutil.Process]:
    """The confined processes below the outer process `pid`, without our init, which is its child."""
    with suppress(psutil.Error):  # a single recursive walk, because each one reads every process of the machine
        return [process for process in psutil.Process(pid).children(recursive=True) if _parent(process) != pid]
    return []


def _parent(process: psutil.Process) -> int:
    with suppress(psutil.Error):
        return int(process.ppid())
    return 0


def worker(pid: int) -> int:
    """The confined process itself, below the outer process `pid` and its init; `pid` if there is none."""
    with suppress(psutil.Error, IndexError):
        return int(psutil.Process(pid).children()[0].children()[0].pid)
    return pid


def _check_processes(pid: int, policy: ConfinementPolicy, limits: SandboxLimits) -> None:
    memory = tasks = 0
    for process in workers(pid):
        with suppress(psutil.Error):
            memory += process.memory_info().rss
            tasks += process.num_threads()
    if memory >> 20 > limits.memory_mb:
        raise limits.exceeded("memory_mb", f"used {memory >> 20} MiB, the limit is {limits.memory_mb} MiB")
    if tasks > policy.tasks:
        raise limits.exceeded("", f"started {tasks} processes and threads, the limit is {policy.tasks}")


def _check_files(pid: int, policy: ConfinementPolicy, limits: SandboxLimits) -> None:
    size = count = 0
    for blocks in (*(_usage(Path(folder)) for folder in policy.write), _deleted(pid)):
        for each in blocks:
            size, count = size + each, count + 1
            if count > policy.work_files:
                raise limits.exceeded("", f"wrote more than {policy.work_files} files")
            if each == _ENDLESS:
                raise limits.exceeded("", f"made folders nested so deep that a path has over {_LONGEST} characters")
            if size > policy.work_mb << 20:
                raise limits.exceeded("", f"wrote {size >> 20} MiB, the limit is {policy.work_mb} MiB")


def _usage(folder: Path) -> Iterator[int]:
    """The bytes on disk of each file and folder below `folder`; links are not followed."""
    pending = [folder]
    while pending:
        current = pending.pop()
        if len(str(current)) > _LONGEST:
            yield _ENDLESS  # the kernel accepts no path to the files below
            return
        with suppress(OSError), os.scandir(current) as entries:
            for entry in entries:
                with suppress(OSError):
                    yield entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(Path(entry.path))


def _deleted(pid: int) -> Iterator[int]:
    """The bytes of each file that a worker has open although it was deleted: its space is freed only when it closes."""
    seen = set()
    for process in workers(pid):
        with suppress(OSError):
            for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
                with suppress(OSError):
                    file = descriptor.stat()
                    if stat.S_ISREG(file.st_mode) and not file.st_nlink and (file.st_dev, file.st_ino) not in seen:
                        seen.add((file.st_dev, file.st_ino))
                        yield file.st_blocks * 512
