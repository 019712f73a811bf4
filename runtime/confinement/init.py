"""The order in which a process is confined, and the first process of its PID namespace.

The process that calls `confine` enters the namespaces and waits. Its child is the namespace's init: it arranges the
mounts and reaps orphans. It ends as soon as its own child, the worker, has ended; the kernel then kills everything that
the worker left behind. Only the worker returns from `confine`: without capabilities, under Landlock and seccomp.
"""

import os
import resource
import select
import signal
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from shiplift.runtime.base.errors import NotConfined
from shiplift.runtime.confinement import kernel, landlock, namespaces, seccomp
from shiplift.runtime.confinement.policy import ConfinementPolicy

EXIT_CODE = NotConfined.exit_code
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_SITE = "or accept it: `sandbox: {{allow_without: [{}]}}` in the site's settings (`shiplift up --allow-without {}`)"
ADVICE = {
    "namespaces": "Allow unprivileged user namespaces (sysctl user.max_user_namespaces=10000; Ubuntu: "
    "kernel.apparmor_restrict_unprivileged_userns=0; Debian before 11: kernel.unprivileged_userns_clone=1; a pod: a "
    "seccompProfile that permits unshare)",
    "landlock": "Use Linux 5.13 or newer with `landlock` among its LSMs (boot parameter lsm=)",
    "seccomp": "Use a kernel with CONFIG_SECCOMP_FILTER, on x86-64 or arm64",
    "capabilities": "Run it with fewer privileges, outside of any tool that forbids dropping them",
}
_KILLED_FIRST = "900"  # of at most 1000; see proc_pid_oom_score_adj(5)
Refuse = Callable[[str, str], NoReturn]


def advice(mechanism: str) -> str:
    """What to do if the kernel refuses a mechanism."""
    accept = f", {_SITE.format(mechanism, mechanism)}" if mechanism in ("namespaces", "landlock", "seccomp") else ""
    return f"{ADVICE[mechanism]}{accept}."


@dataclass
class Held:
    """Which mechanisms hold: the reason for each missing one, and the version of Landlock's interface."""

    missing: dict[str, str] = field(default_factory=dict)
    landlock_abi: int = 0

    @property
    def own_pids(self) -> bool:
        """Whether the machine's other processes are hidden."""
        return "namespaces" not in self.missing


def confine(policy: ConfinementPolicy, refuse: Refuse, *, close: tuple[int, ...] = ()) -> Held:
    """Confines this process. Returns in the worker, a grandchild, with the mechanisms that hold.

    The calling process stays, passes signals on, and ends the way the worker does. Only the worker keeps the
    descriptors in `close`. Any of the three processes calls `refuse(mechanism, why)` if the kernel lacks a mechanism
    that the policy does not waive; `refuse` must end the process.
    """
    held = Held()
    _leash(policy)
    kernel.no_new_privileges()
    _try("namespaces", lambda: namespaces.enter(policy), policy, held, refuse)
    _leash(policy)
    upwards = _fork(held, close)
    if held.own_pids:
        held.missing |= _named(mounts=namespaces.arrange_mounts(policy))
        namespaces.limit_tasks(policy.tasks)
    os.close(_fork(held, close, upwards))
    os.close(upwards)
    _restrict(policy, held, refuse)
    return held


def _leash(policy: ConfinementPolicy) -> None:
    if policy.ends_with_parent:
        kernel.die_with_parent()


def _named(*, mounts: tuple[str, str]) -> dict[str, str]:
    return {name: why for name, why in zip(("mounts", "proc"), mounts, strict=True) if why}


def _try(name: str, enter: Callable[[], None], policy: ConfinementPolicy, held: Held, refuse: Refuse) -> None:
    try:
        enter()
    except OSError as error:
        held.missing[name] = str(error)
        if name not in policy.allow_without:
            refuse(name, str(error))


def _restrict(policy: ConfinementPolicy, held: Held, refuse: Refuse) -> None:
    """What the worker does to itself. The filter of system calls comes last: it forbids the calls of the others.

    Mounts are already arranged: under Landlock, no process can change them (landlock(7)).
    """
    _limit(policy, held)

    def lock_files() -> None:
        held.landlock_abi = landlock.restrict(policy, own_proc=held.own_pids and "proc" not in held.missing)

    def filter_calls() -> None:
        seccomp.restrict(policy, own_pids=held.own_pids)

    _try("capabilities", kernel.drop_capabilities, policy, held, refuse)
    _try("landlock", lock_files, policy, held, refuse)
    _try("seccomp", filter_calls, policy, held, refuse)


def _limit(policy: ConfinementPolicy, held: Held) -> None:
    with suppress(OSError):  # when the machine runs out of memory, this is killed first
        Path("/proc/self/oom_score_adj").write_text(_KILLED_FIRST)
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_MEMLOCK: 64 << 20,
        resource.RLIMIT_NOFILE: policy.open_files,
    }
    if held.own_pids:  # counted per user namespace; without one, all processes of the user would count
        limits[resource.RLIMIT_NPROC] = policy.tasks
    for limit, value in limits.items():
        hard = resource.getrlimit(limit)[1]
        lower = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (lower, lower))


# --- the two processes above the worker -------------------------------------------------------------------------------


def _fork(held: Held, close: tuple[int, ...], upwards: int | None = None) -> int:
    """Forks. The child returns a descriptor, to which it writes how its own child ended.

    The parent passes signals on to the child, waits, reports to `upwards` how the child ended, and ends the same way.
    """
    life, alive = os.pipe()
    word, told = os.pipe()
    child = os.fork()
    if child:
        for descriptor in (life, told, *close):
            os.close(descriptor)
        _guard(child, word, held, upwards)
    os.close(alive)
    os.close(word)
    kernel.die_with_parent()
    if select.select([life], [], [], 0)[0]:
        os._exit(1)  # the parent ended before that call, so its death can't end this process any more
    os.close(life)
    return told


def _guard(child: int, word: int, held: Held, upwards: int | None) -> NoReturn:
    for number in _FORWARDED:
        signal.signal(number, lambda received, _frame: _forward(child, received))
    kernel.adopt_orphans()
    if upwards is not None:  # the init, which the worker can see: it keeps nothing worth taking
        with suppress(OSError):
            kernel.drop_capabilities()
        kernel.close_to_others()
    status = _wait(child)
    if upwards is None:
        status = _read_word(word, status)
    else:
        _end_orphans(held)
        os.write(upwards, struct.pack("=i", status))
    _end_like(status)


def _forward(child: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(child, number)


def _wait(child: int) -> int:
    while True:
        pid, status = os.wait()
        if pid == child:
            return status


def _end_orphans(held: Held) -> None:
    """Kills the processes that the worker left behind, if there is no PID namespace through which the kernel does."""
    if held.own_pids:
        return
    while children := Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        with suppress(ChildProcessError):
            os.wait()


def _read_word(word: int, status: int) -> int:
    """How the worker ended, as the init reports it: the init of a namespace can't kill itself with a signal."""
    text = os.read(word, 4) if select.select([word], [], [], 0)[0] else b""
    return struct.unpack("=i", text)[0] if len(text) == 4 else status


def _end_like(status: int) -> NoReturn:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        os._exit(128 + number)
    os._exit(os.WEXITSTATUS(status))
