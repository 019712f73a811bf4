"""Landlock: which files a process may read and write, and which TCP ports it may use, whatever its user may do."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import landlockpy
from landlockpy import AccessFS, AccessNet, Scope

from shiplift.runtime.confinement.policy import SYSTEM, ConfinementPolicy

_READING = AccessFS.EXECUTE | AccessFS.READ_FILE | AccessFS.READ_DIR
_OF_A_FILE = AccessFS.EXECUTE | AccessFS.WRITE_FILE | AccessFS.READ_FILE | AccessFS.TRUNCATE | AccessFS.IOCTL_DEV
# No devices, sockets or FIFOs: one could block or mislead the host when it reads the work folder.
_WRITING = landlockpy.fs_for_abi(3) & ~(
    AccessFS.MAKE_CHAR | AccessFS.MAKE_BLOCK | AccessFS.MAKE_SOCK | AccessFS.MAKE_FIFO
)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/urandom", "/dev/random")
_GPU_DEVICES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset", "/dev/nvidia-caps")
# What libraries read about the machine. Without a private /proc, a process sees only these and its own folder.
_PROC_FILES = (
    "cpuinfo",
    "meminfo",
    "stat",
    "loadavg",
    "uptime",
    "version",
    "filesystems",
    "sys/kernel/osrelease",
    "sys/kernel/random",
    "sys/vm",
    "driver",
)


def restrict(policy: ConfinementPolicy, *, own_proc: bool) -> int:
    """Restricts this thread and the processes it starts; returns the version of Landlock's interface (the ABI).

    `own_proc`: /proc shows only this PID namespace.

    Raises:
        OSError: the kernel has no Landlock, or it is disabled.
    """
    # Signals and abstract sockets have no path for a rule: they are scoped to processes of the same domain.
    scoped = Scope.SIGNAL | Scope.ABSTRACT_UNIX_SOCKET
    with landlockpy.Ruleset(scoped=scoped) as ruleset:
        for path in (*SYSTEM, *policy.read, *_proc(own_proc=own_proc)):
            _allow(ruleset, path, _READING)
        for path in _devices(policy):
            _allow(ruleset, path, _READING | AccessFS.WRITE_FILE | AccessFS.IOCTL_DEV)
        for path in (*policy.write, *_private(policy)):
            _allow(ruleset, path, _WRITING)
        for port in policy.ports if policy.network else ():
            ruleset.allow_port(port, AccessNet.BIND_TCP | (AccessNet.CONNECT_TCP if policy.connects else 0))
        ruleset.restrict()
        return ruleset.abi_version


def _allow(ruleset: landlockpy.Ruleset, path: str, access: AccessFS) -> None:
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError):  # a path that can't be opened needs no rule
        ruleset.allow_path(path, access if Path(path).is_dir() else access & _OF_A_FILE)


def _proc(*, own_proc: bool) -> Iterator[str]:
    if own_proc:
        yield "/proc"
        return
    yield f"/proc/{Path('/proc/self').readlink()}"
    yield from (f"/proc/{name}" for name in _PROC_FILES)


def _private(policy: ConfinementPolicy) -> Iterator[str]:
    if policy.shared_memory_mb:
        yield "/dev/shm"  # noqa: S108 - a private one
    if policy.temporary_mb:
        yield "/tmp"  # noqa: S108 - a private one


def _devices(policy: ConfinementPolicy) -> Iterator[str]:
    yield from _DEVICES
    if policy.gpu:
        yield from _GPU_DEVICES
        yield from (str(path) for path in Path("/dev").glob("nvidia[0-9]*"))
