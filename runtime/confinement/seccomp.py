"""seccomp: turns the allow-list of `calls` into a filter for this machine's architecture.

A call from a foreign architecture ends the process. Every call that is not on the list fails with EPERM.
"""

import errno
from collections.abc import Iterable
from itertools import product

import seccompy
from seccompy import Action, CmpOp, Filter
from seccompy.syscalls import AARCH64_SYSCALLS, X86_64_SYSCALLS

from shiplift.runtime.confinement import calls
from shiplift.runtime.confinement.policy import ConfinementPolicy

_TABLES = {"x86_64": X86_64_SYSCALLS, "aarch64": AARCH64_SYSCALLS}
_EQ, _BELOW, _MASKED = CmpOp.EQ, CmpOp.LT, CmpOp.MASKED_EQ


def restrict(policy: ConfinementPolicy, *, own_pids: bool) -> None:
    """Filters the system calls of this thread and of the processes it starts.

    Raises:
        OSError: the kernel has no seccomp, or this architecture has no list.
    """
    build(policy, own_pids=own_pids).load()


def build(policy: ConfinementPolicy, *, own_pids: bool, machine: str = "") -> Filter:
    """The filter of a policy. `own_pids`: a PID namespace hides the other processes of the machine.

    Raises:
        OSError: this architecture has no list.
    """
    machine = machine or _machine()
    filt = _Named(_TABLES[machine])
    filt.allow(calls.ALWAYS)
    _processes(filt, policy)
    _others(filt, policy, own_pids=own_pids)
    _descriptors(filt, policy)
    _sockets(filt, policy)
    filt.fail(calls.IGNORED, 0)
    filt.fail(calls.ABSENT, errno.ENOSYS)
    return filt.filter


def _machine() -> str:
    name = {"amd64": "x86_64", "arm64": "aarch64"}.get(seccompy.arch(), seccompy.arch())
    if name not in _TABLES:
        raise OSError(f"there is no list of system calls for {name}")
    return name


class _Named:
    """A filter that skips the calls that the architecture lacks."""

    def __init__(self, table: dict[str, int]) -> None:
        self.filter = Filter(default=int(Action.ERRNO) | errno.EPERM)
        self._table = table

    def allow(self, names: Iterable[str], *conditions: tuple[int, int, int] | tuple[int, int, int, int]) -> None:
        for name in names:
            if name in self._table:
                self.filter.allow(self._table[name], args=conditions or None)

    def allow_values(self, names: Iterable[str], index: int, values: Iterable[int]) -> None:
        for name in names:
            for value in values:
                self.allow((name,), (index, _EQ, value))

    def fail(self, names: Iterable[str], error: int, *conditions: tuple[int, int, int, int]) -> None:
        for name in names:
            if name in self._table:
                self.filter.errno(self._table[name], error, args=conditions or None)


def _processes(filt: _Named, policy: ConfinementPolicy) -> None:
    # clone's flags are plain bits: none may make a namespace, and without `programs` only threads are made.
    thread = 0 if policy.programs else calls.THREAD
    filt.allow(("clone",), (0, _MASKED, thread, calls.NAMESPACES | thread))
    if policy.programs:
        filt.allow(calls.PROGRAMS)
    filt.allow(("prlimit64",), (0, _EQ, 0))  # 0 is the caller itself
    filt.allow(("personality",), (0, _EQ, calls.QUERY_PERSONALITY))
    filt.allow_values(("prctl",), 0, calls.PRCTLS)
    if policy.confines:
        filt.allow(calls.CONFINING)
        filt.allow_values(("seccomp",), 0, (calls.SECCOMP_SET_FILTER,))


def _others(filt: _Named, policy: ConfinementPolicy, *, own_pids: bool) -> None:
    """Calls that name a process: harmless if no other process is visible, else limited to the caller.

    A process that hosts another one must be able to kill it. The hosted one has its own filter, which forbids that.
    """
    if own_pids:
        filt.allow(calls.OTHERS)
        return
    import os  # noqa: PLC0415

    filt.allow(("sched_setaffinity",), (0, _EQ, 0))
    filt.allow(("kill", "tgkill"), (0, _EQ, os.getpid()))
    if policy.confines:
        filt.allow(("kill",))


def _descriptors(filt: _Named, policy: ConfinementPolicy) -> None:
    """Refuses `open` with O_TRUNC but no write access: Landlock controls truncation only since its third version."""
    for name, index in (("open", 1), ("openat", 2)):
        filt.fail((name,), errno.EPERM, (index, _MASKED, calls.O_TRUNC, calls.O_TRUNC | calls.O_ACCMODE))
    filt.allow(("open", "openat"))
    filt.allow_values(("fcntl",), 1, calls.FCNTLS)
    filt.allow_values(("ioctl",), 1, calls.IOCTLS)
    if policy.gpu:
        filt.allow_values(("ioctl",), 1, calls.GPU_IOCTLS)
        filt.allow(("ioctl",), (1, _MASKED, 0x4600, 0xFF00))  # the NVIDIA driver
        filt.allow(("ioctl",), (1, _BELOW, 0x200))  # its unified memory
    filt.fail(("ioctl",), errno.ENOTTY)  # as from a file that does not know the request (ioctl(2))


def _sockets(filt: _Named, policy: ConfinementPolicy) -> None:
    """Allows connected pairs only: an unconnected Unix socket could send to any other one on this machine."""
    filt.allow(("socketpair",), (0, _EQ, calls.AF_UNIX), (1, _MASKED, calls.SOCK_STREAM, calls.SOCK_TYPE))
    if policy.network:
        kinds = (calls.SOCK_STREAM, *((calls.SOCK_DGRAM,) if policy.resolves else ()))
        for family, kind in product((calls.AF_INET, calls.AF_INET6), kinds):
            filt.allow(("socket",), (0, _EQ, family), (1, _MASKED, kind, calls.SOCK_TYPE))
        filt.allow(name for name in calls.SERVER if policy.connects or name != "connect")
