"""Child processes that are never orphaned: killed with their parent, or identified by pid and start time."""

import contextlib
import ctypes
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path

import psutil

import shiplift
from shiplift.runtime.base.errors import PortTaken, ShipliftError
from shiplift.runtime.records.process import Process

_PR_SET_PDEATHSIG = 1
_SERVERS_PORTS = range(10_000, 32_000)  # Linux' default for outgoing connections is 32768 to 60999
_NOTICE_S = 5
BACK = 10  # a niceness: the processor goes to others first
_POLL_S = 0.02
_CGROUP = Path("/sys/fs/cgroup")
_libc = ctypes.CDLL(None)
_RUN_MODULE = """
import importlib.util, runpy, sys
folder, name = sys.argv[1:3]
spec = importlib.util.spec_from_file_location("shiplift", folder + "/__init__.py", submodule_search_locations=[folder])
sys.modules["shiplift"] = package = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
sys.argv[:3] = [name]
runpy.run_module(name, run_name="__main__", alter_sys=True)
"""


def alive(process: Process) -> bool:
    """Whether a process still runs."""
    with contextlib.suppress(psutil.Error):
        current = psutil.Process(process.pid)
        return abs(current.create_time() - process.started_at) < 1 and current.status() != psutil.STATUS_ZOMBIE
    return False


def identify(pid: int) -> Process:
    """The process that has this pid now, in a form that a reused pid does not match."""
    return Process(pid=pid, started_at=psutil.Process(pid).create_time())


def start_child(
    command: Sequence[str | Path],
    *,
    environment: Mapping[str, str],
    log: Path,
    folder: Path | None = None,
    own_session: bool = True,
) -> "subprocess.Popen[bytes]":
    """Starts a child that is killed when this process ends, however it ends; its output is appended to `log`.

    Without `own_session`, it also receives the signals sent to this process's group.
    """
    return _start(command, environment, log, folder, die_with_parent, own_session=own_session)


def own_module(module: str, *arguments: str | Path) -> list[str]:
    """The command that runs one of our modules in a child, even from a confined process.

    A confined Python can't list the folder that holds a checkout, and so finds no package in it. The command passes the
    package's location.
    """
    package = str(Path(shiplift.__file__).parent)
    return [sys.executable, "-I", "-c", _RUN_MODULE, package, module, *map(str, arguments)]


def start_daemon(
    command: Sequence[str | Path], *, environment: Mapping[str, str], log: Path, folder: Path | None = None
) -> Process:
    """Starts a process that outlives this one, in its own session."""
    return identify(_start(command, environment, log, folder, None).pid)


def stop(process: Process, *, grace_s: float = 10, apart: Collection[Process] = ()) -> None:
    """Terminates a process and its children, and kills what is left after `grace_s` seconds. A no-op if it is gone.

    `apart`: processes that are left to run with their children, even where `process` is their parent.
    """
    if not alive(process):
        return
    spared = {member for other in apart if other != process for member in _family(other.pid)}
    family = [member for member in _family(process.pid) if member not in spared]
    with contextlib.suppress(psutil.Error):
        psutil.Process(process.pid).terminate()
    wait_for(_kill_late(family, grace_s), limit_s=5)


def kill(process: Process) -> None:
    """Kills a private server at once. Its children notice, free their shared memory and exit.

    Those still running after a few seconds are killed: a stub that waits for its server would stay forever.
    """
    if alive(process):
        family = _family(process.pid)
        with contextlib.suppress(psutil.Error):
            psutil.Process(process.pid).kill()
            psutil.Process(process.pid).wait(timeout=5)
        threading.Thread(target=_kill_late, args=(family, _NOTICE_S), daemon=True).start()


def _kill_late(family: Sequence[psutil.Process], grace_s: float) -> list[psutil.Process]:
    """Kills the processes that are still alive after `grace_s` seconds, and returns them."""
    survivors = wait_for(family, limit_s=grace_s)
    for survivor in survivors:
        with contextlib.suppress(psutil.Error):
            survivor.kill()
    return survivors


def wait_for(processes: Sequence[psutil.Process], *, limit_s: float) -> list[psutil.Process]:
    """Waits until processes have ended; returns those that still run after `limit_s` seconds.

    A zombie has ended. Waiting until it is reaped could take for ever: the first process of a container may not reap.
    """
    deadline = time.monotonic() + limit_s
    running = [process for process in processes if _runs(process)]
    while running and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        running = [process for process in running if _runs(process)]
    return running


def _runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        try:
            process.wait(timeout=0)  # reaps a child of this process
        except psutil.TimeoutExpired:
            return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def memory_mb(pid: int) -> float:
    """The proportional set size of a process and its children, in MiB; shared pages are counted once."""
    total = 0
    for process in _family(pid):
        with contextlib.suppress(psutil.Error):
            total += process.memory_full_info().pss
    return total / 2**20


def resident_mb(pid: int) -> float:
    """The resident memory of a process and its children, in MiB: cheap to read, but shared pages count repeatedly."""
    total = 0
    for process in _family(pid):
        with contextlib.suppress(psutil.Error):
            total += process.memory_info().rss
    return total / 2**20


def own_memory_mb() -> tuple[float, float]:
    """This process's resident memory now and at its peak, in MiB.

    It does not use `getrusage`, whose peak includes the parent's memory from before this process was started.
    """
    status = Path("/proc/self/status").read_text()
    current, peak = (int(status.split(f"{key}:")[1].split()[0]) / 1024 for key in ("VmRSS", "VmHWM"))
    return current, peak


def free_memory_mb() -> int:
    """The memory that new processes can use here, in MiB: the machine's, or the container's if that is less."""
    free = psutil.virtual_memory().available
    with contextlib.suppress(OSError, ValueError):  # there is no limit, or no cgroup v2
        limit, used = (int((_CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        cached = re.search(r"^inactive_file (\d+)$", (_CGROUP / "memory.stat").read_text(), re.MULTILINE)
        # The kernel gives inactive page cache back when memory is needed; the kubelet doesn't count it as used either.
        free = min(free, limit - used + (int(cached.group(1)) if cached else 0))
    return max(free >> 20, 1)


def total_memory_mb() -> int:
    """The memory of this machine in MiB, or the container's limit if that is less."""
    total = int(psutil.virtual_memory().total)
    with contextlib.suppress(OSError, ValueError):  # there is no limit, or no cgroup v2
        total = min(total, int((_CGROUP / "memory.max").read_text()))
    return max(total >> 20, 1)


def free_port() -> int:
    """A TCP port that nothing on this machine uses at the moment.

    It lies outside the range from which the kernel takes ports for outgoing connections: one of them could take it
    before a server does.
    """
    first = random.randrange(len(_SERVERS_PORTS))  # noqa: S311 - no secret
    for port in chain(_SERVERS_PORTS[first:], _SERVERS_PORTS[:first]):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port
    raise PortTaken(
        f"every port from {_SERVERS_PORTS.start} to {_SERVERS_PORTS[-1]} is taken", do="Stop what takes them."
    )


def listening(host: str, port: int) -> bool:
    """Whether a TCP port accepts connections."""
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


def require_free(host: str, port: int, service: str, flag: str) -> None:
    """Checks that no process listens on a port.

    Raises:
        PortTaken: a process listens; the message names it if it is visible.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise PortTaken(
                f"port {port}, needed by {service}, is taken{_listener(port)}",
                do=f"Stop that process, choose another port with {flag}, or let `--free-ports` choose all of them.",
            ) from error


def _listener(port: int) -> str:
    with contextlib.suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            if (
                connection.status == psutil.CONN_LISTEN
                and getattr(connection.laddr, "port", 0) == port
                and connection.pid
            ):
                return f" by {psutil.Process(connection.pid).name()} (pid {connection.pid})"
    return ""


def _start(
    command: Sequence[str | Path],
    environment: Mapping[str, str],
    log: Path,
    folder: Path | None,
    before_exec: Callable[[], None] | None,
    *,
    own_session: bool = True,
) -> "subprocess.Popen[bytes]":
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        return subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=dict(environment),
            cwd=folder,
            start_new_session=own_session,
            preexec_fn=before_exec,  # noqa: PLW1509 - one prctl, bound before the fork
        )


def fork(job: Callable[[], int]) -> int:
    """Runs a job in a forked child with this process's memory; returns its pid. The job's result is its exit code.

    SystemExit with a number ends it with that code. Any other exception is a bug: its traceback goes to stderr, and the
    exit code is that of an unknown error. The child ends without what libraries do at exit: some wait there for threads
    that they started before the fork, which the child does not have.
    """
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = ShipliftError.exit_code
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        code = job()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def die_with_parent() -> None:
    """Asks the kernel to kill this process when its parent ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _family(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def inherited(names: Sequence[str] = ("PATH", "HOME", "LANG", "TMPDIR", "TZ")) -> dict[str, str]:
    """The few environment variables that a server needs; the caller's credentials are not among them."""
    return {name: os.environ[name] for name in names if name in os.environ}


def thread_steps_back(nice: int = BACK) -> None:
    """Lets other threads of the machine have the processor before this one; for good."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)


def step_back(process: Process, nice: int = BACK) -> None:
    """Lets other processes have the processor before this one and its children, in every thread; for good.

    On Linux, a priority is a thread's own, and new threads take their creator's.
    """
    for member in _family(process.pid) if alive(process) else ():
        with contextlib.suppress(psutil.Error, OSError):
            for thread in member.threads():
                with contextlib.suppress(OSError):
                    os.setpriority(os.PRIO_PROCESS, thread.id, nice)
