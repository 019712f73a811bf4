"""Running code that may be hostile: a child process without credentials, network or the user's files.

Loading a logged model can run its author's code, so it happens here and nowhere else. The child starts with an
environment of a dozen harmless variables, puts itself into an empty network namespace (unshare(2)), lets Landlock
(landlock(7)) forbid every path but the model (read) and its own work folder (write), takes resource limits
(setrlimit(2)), and only then imports what it was asked to run. The parent watches its memory and its time.
"""

import contextlib
import ctypes
import importlib
import json
import os
import resource
import signal
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NoReturn

import psutil

from runtime.errors import ExportFailed, SandboxLimit, ShipliftError, by_exit_code
from runtime.records import Isolation

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
# landlock(7): access rights of ABI 1, then those added by later ABIs
_FS_EXECUTE, _FS_WRITE_FILE, _FS_READ_FILE, _FS_READ_DIR = 1, 2, 4, 8
_FS_ALL = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
_NET_ALL = 3
_SCOPE_ALL = 3  # ABI 6: no signals to, and no abstract sockets of, processes outside
_FILE_RIGHTS = _FS_EXECUTE | _FS_WRITE_FILE | _FS_READ_FILE | (1 << 14)
_SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/localtime", "/etc/mime.types", "/proc", "/sys")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_HEADROOM_MB = 1024  # shared libraries' private pages and thread stacks are not the model's fault


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the child may use: resident memory in MiB, wall-clock and CPU seconds, and one file's size in MiB."""

    memory_mb: int
    timeout_s: int
    file_mb: int = 65536


@dataclass(frozen=True, kw_only=True)
class _Child:
    """A sandboxed process that waits for its order; what it prints goes to `log`."""

    process: "subprocess.Popen[bytes]"
    log: IO[bytes]


_warm: dict[str, _Child] = {}


def warm(entry: str) -> None:
    """Starts the sandbox for an entry ahead of time: its imports run while the caller does something else."""
    if entry not in _warm:
        _warm[entry] = _start(entry, "--preload")


def run_sandboxed(
    entry: str, arguments: dict[str, Any], *, read: Sequence[Path], work: Path, limits: Limits
) -> tuple[dict[str, Any], Isolation]:
    """Runs `module:function(**arguments)` in the sandbox and gives its JSON result, and what isolated it.

    The function may read the paths in `read` and write below `work`, where its arguments' paths must lie.

    Raises:
        SandboxLimit: it needed more memory or time than `limits`.
        ShipliftError: whatever error of ours the function raised.
        ExportFailed: it ended in any other way.
    """
    work.mkdir(parents=True, exist_ok=True)
    result = work / "result.json"
    result.unlink(missing_ok=True)
    child = _warm.pop(entry, None) or _start(entry)
    order = {"arguments": arguments, "read": [str(p) for p in read], "work": str(work), "limits": asdict(limits)}
    try:
        _send(child, order)
        _watch(child.process, limits)
    finally:
        _end(child.process)
    child.log.seek(0)
    said = child.log.read().decode(errors="replace")[-4000:]
    print(said, end="", file=sys.stderr)
    return _outcome(child.process.returncode, result, said, limits)


def _start(entry: str, *flags: str) -> _Child:
    log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child's record
    process = subprocess.Popen(
        [sys.executable, "-I", "-m", "runtime.sandbox", entry, *flags], stdin=subprocess.PIPE, stdout=log, stderr=log,
        env=_environment(), cwd="/", start_new_session=True,
    )  # fmt: skip
    return _Child(process=process, log=log)


def _send(child: _Child, order: dict[str, Any]) -> None:
    pipe = child.process.stdin
    if pipe is None:
        raise ValueError("the child has no pipe")
    with contextlib.suppress(BrokenPipeError):  # it is gone already: its exit code says why
        pipe.write(json.dumps(order).encode() + b"\n")
        pipe.close()


def _environment() -> dict[str, str]:
    """All the child sees; nothing of ours is inherited, so no credential is. Its folders are set with its order."""
    return {
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "1",
        "PROMPTFOO_DISABLE_TELEMETRY": "1",
        "GIT_PYTHON_REFRESH": "quiet",
    }


def _watch(child: "subprocess.Popen[bytes]", limits: Limits) -> None:
    """Waits for the child; kills it at its memory or time limit."""
    deadline = time.monotonic() + limits.timeout_s
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=0.1)
            return
        used = _memory_mb(child.pid)
        if used > limits.memory_mb:
            raise SandboxLimit(
                f"loading or converting the model used {used} MiB, the limit is {limits.memory_mb} MiB",
                do="Raise `export.memory_mb` in the spec, or make the model smaller.",
            )
        if time.monotonic() > deadline:
            raise _too_slow(limits)


def _memory_mb(pid: int) -> int:
    """Of the fork that works, and of its children; until there is one, of the process that imports."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        family = process.children(recursive=True) or [process]
        return int(sum(one.memory_info().rss for one in family) >> 20)
    return 0


def _end(child: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _too_slow(limits: Limits) -> SandboxLimit:
    return SandboxLimit(
        f"loading or converting the model took over {limits.timeout_s} s",
        do="Raise `export.timeout_s` in the spec, or make the model simpler.",
    )


def _outcome(code: int, result: Path, tail: str, limits: Limits) -> tuple[dict[str, Any], Isolation]:
    said = _read_result(result) or {}
    with contextlib.suppress(KeyError, TypeError, ValueError):  # what it wrote is not what we write: see how it ended
        if code == 0 and "value" in said:
            return said["value"], Isolation.model_validate(said["isolation"])
        if "error" in said:
            error = said["error"]
            raise by_exit_code(int(error["exit_code"]))(str(error["what"]), do=str(error["do"]))
    if code == -signal.SIGXCPU:
        raise _too_slow(limits)
    if "MemoryError" in tail or "bad_alloc" in tail or "Cannot allocate memory" in tail:
        raise SandboxLimit(
            f"loading or converting the model needed more than {limits.memory_mb} MiB",
            do="Raise `export.memory_mb` in the spec, or make the model smaller.",
        )
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    raise ExportFailed(
        f"the sandboxed process ended with {how}: {_last_line(tail)}", do="Run the model locally to see what it does."
    )


def _read_result(result: Path) -> dict[str, Any] | None:
    """The child's word is data: it must be a small JSON object."""
    if not result.is_file() or result.stat().st_size > 16 << 20:
        return None
    with contextlib.suppress(ValueError, RecursionError):
        said = json.loads(result.read_text())
        return said if isinstance(said, dict) else None
    return None


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it said nothing")[:400]


# --- inside the child -----------------------------------------------------------------------------------------------


def main(entry: str, *, preload: bool) -> None:
    """The child: import trusted code, wait for the order, isolate, and only then run on what may be hostile."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    network = _leave_network()
    module, _, name = entry.partition(":")
    loaded = importlib.import_module(module)
    if preload:
        _preload(loaded)
    function = getattr(loaded, name)
    line = sys.stdin.readline()
    if not line:
        return  # the parent went away without an order
    order = json.loads(line)
    _in_a_fork(lambda: _obey(function, order, network=network))


def _obey(function: Callable[..., Any], order: dict[str, Any], *, network: bool) -> None:
    limits, work = Limits(**order["limits"]), Path(order["work"])
    os.chdir(work)
    os.environ.update(dict.fromkeys(("HOME", "TMPDIR", "MPLCONFIGDIR", "TORCHINDUCTOR_CACHE_DIR"), str(work)))
    tempfile.tempdir = None
    landlocked = _lock_files([Path(p) for p in order["read"]], work)
    _limit(limits)
    isolation = Isolation(
        network="namespace" if network else "landlock" if landlocked >= 4 else "none",
        files="landlock" if landlocked else "none",
        memory_limit_mb=limits.memory_mb,
        timeout_s=limits.timeout_s,
    )
    try:
        said: dict[str, Any] = {"value": function(**order["arguments"]), "isolation": isolation.model_dump()}
    except ShipliftError as error:
        said = {"error": {"exit_code": error.exit_code, "what": error.what, "do": error.do}}
    (work / "result.json").write_text(json.dumps(said))


def _in_a_fork(job: Callable[[], None]) -> NoReturn:
    """Runs a job in a fork, which has one thread, and ends as it ended.

    Landlock binds the thread that asks for it, and those it starts. Libraries imported by now have started others,
    which code that runs later could make act for it.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            job()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)  # without exit handlers: libraries would wait there for threads that the fork does not have
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _preload(module: ModuleType) -> None:
    """What an entry's module names in PRELOAD, as far as it is installed: its likely imports, while nobody waits."""
    for other in getattr(module, "PRELOAD", ()):
        with contextlib.suppress(ImportError):
            importlib.import_module(other)


def _leave_network() -> bool:
    """An empty network namespace, where the kernel lets an unprivileged process have one."""
    uid, gid = os.getuid(), os.getgid()
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
        return False
    with contextlib.suppress(OSError):
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    return True


def _lock_files(read: Sequence[Path], work: Path) -> int:
    """Landlock: read what Python needs and the model, write below `work` alone. Gives the ABI; 0: not available."""
    libc = ctypes.CDLL(None, use_errno=True)
    abi = int(libc.syscall(_LANDLOCK_CREATE, None, 0, 1))
    if abi < 1:
        return 0
    every = _FS_ALL[min(abi, 5)]
    handled = [every, _NET_ALL, _SCOPE_ALL][: 3 if abi >= 6 else 2 if abi >= 4 else 1]
    rules = struct.pack(f"={len(handled)}Q", *handled)
    handle = int(libc.syscall(_LANDLOCK_CREATE, rules, len(rules), 0))
    if handle < 0:
        return 0
    reading = _FS_EXECUTE | _FS_READ_FILE | _FS_READ_DIR
    for path in (*_python_paths(), *map(Path, _SYSTEM), *read):
        _allow(libc, handle, path, reading)
    for device in _DEVICES:
        _allow(libc, handle, Path(device), _FS_READ_FILE | _FS_WRITE_FILE)
    _allow(libc, handle, work, every)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    restricted = libc.syscall(_LANDLOCK_RESTRICT, handle, 0) == 0
    os.close(handle)
    return abi if restricted else 0


def _allow(libc: ctypes.CDLL, ruleset: int, path: Path, rights: int) -> None:
    with contextlib.suppress(OSError):
        at = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            allowed = rights if path.is_dir() else rights & _FILE_RIGHTS
            libc.syscall(_LANDLOCK_ADD, ruleset, 1, struct.pack("=Qi", allowed, at), 0)
        finally:
            os.close(at)


def _python_paths() -> list[Path]:
    """The interpreter, its packages, and our own (an editable install lies elsewhere)."""
    ours = Path(__file__).resolve().parent
    site = {Path(p) for p in (sys.prefix, sys.base_prefix, *sysconfig.get_paths().values())}
    return [*site, ours, ours.parent / "steps"]


def _limit(limits: Limits) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (limits.timeout_s * (os.cpu_count() or 1),) * 2)
    resource.setrlimit(resource.RLIMIT_DATA, ((limits.memory_mb + _HEADROOM_MB) << 20,) * 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limits.file_mb << 20,) * 2)


if __name__ == "__main__":
    main(sys.argv[1], preload="--preload" in sys.argv)
