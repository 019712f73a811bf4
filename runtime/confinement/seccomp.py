"""seccomp: turns the allow-list of `calls` into a filter for this machine's architecture.

A call from a foreign architecture ends the process. Every call that is not on the list fails with EPERM.
"""

import errno
import os
from collections.abc import Iterable, Iterator
from itertools import product

import seccompy
from seccompy import Action, CmpOp, Filter
from seccompy.syscalls import AARCH64_SYSCALLS, X86_64_SYSCALLS

from shiplift.runtime.confinement import arguments, calls
from shiplift.runtime.confinement.arguments import CallRule
from shiplift.runtime.confinement.policy import ConfinementPolicy

_TABLES = {"x86_64": X86_64_SYSCALLS, "aarch64": AARCH64_SYSCALLS}
_O_ACCMODE, _O_TRUNC = 0o3, 0o1000
_EQ, _MASKED = CmpOp.EQ, CmpOp.MASKED_EQ


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
    filt.allow(_names(policy))
    _others(filt, policy, own_pids=own_pids)
    # Landlock controls truncation only since its third version.
    for name, index in (("open", 1), ("openat", 2)):
        filt.fail((name,), errno.EPERM, (index, _MASKED, _O_TRUNC, _O_TRUNC | _O_ACCMODE))
    filt.keep(rules(policy))
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

    def keep(self, kept: Iterable[CallRule]) -> None:
        """Allows calls by rule; a call that has rules meets the error of the first of them if none fits."""
        errors: dict[str, int] = {}
        for rule in kept:
            words = [[(each.index, _MASKED, value, each.mask) for value in each.values] for each in rule.arguments]
            for name in rule.calls:
                errors.setdefault(name, rule.error)
                for conditions in product(*words):
                    self.allow((name,), *conditions)
        for name, error in errors.items():
            self.fail((name,), error)

    def fail(self, names: Iterable[str], error: int, *conditions: tuple[int, int, int, int]) -> None:
        for name in names:
            if name in self._table:
                self.filter.errno(self._table[name], error, args=conditions or None)


def _names(policy: ConfinementPolicy) -> Iterator[str]:
    """The calls that a policy allows whatever they are asked."""
    yield from calls.ALWAYS
    if policy.programs:
        yield from calls.PROGRAMS
    if policy.confines:
        yield from calls.CONFINING
    if policy.network:
        yield from (name for name in calls.SERVER if policy.connects or name != "connect")


def rules(policy: ConfinementPolicy) -> Iterator[CallRule]:
    """The rules for the arguments of calls under a policy."""
    yield from arguments.ALWAYS
    yield from arguments.PROCESSES if policy.programs else arguments.THREADS
    yield from arguments.ADDRESSED if policy.network and policy.resolves else arguments.CONNECTED
    yield from arguments.IOCTL
    yield from arguments.GPU_IOCTL if policy.gpu else ()
    yield from arguments.CONFINES if policy.confines else ()
    yield from arguments.NETWORK if policy.network else ()
    yield from arguments.DATAGRAMS if policy.network and policy.resolves else ()


def _others(filt: _Named, policy: ConfinementPolicy, *, own_pids: bool) -> None:
    """Calls that name a process: harmless if no other process is visible, else limited to the caller.

    A process that hosts another one must be able to kill it. The hosted one has its own filter, which forbids that.
    """
    if own_pids:
        filt.allow(calls.OTHERS)
        return
    filt.allow(("sched_setaffinity",), (0, _EQ, 0))
    filt.allow(("kill", "tgkill"), (0, _EQ, os.getpid()))
    if policy.confines:
        filt.allow(("kill",))
