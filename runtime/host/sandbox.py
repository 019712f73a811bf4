"""Running code that may be hostile: a child process without credentials, network or the user's files.

Loading a logged model can run its author's code, so it happens here and nowhere else. Before it imports anything but
this module, the child puts itself into an empty network namespace (unshare(2)), lets Landlock (landlock(7)) forbid
every path but its own work folder (write) and what it was given (read), and lets seccomp(2) refuse the calls that go
around both. Its environment has a dozen harmless variables, it takes resource limits (setrlimit(2)), and the parent
watches its memory and its time.
"""

import contextlib
import ctypes
import importlib
import json
import os
import platform
import resource
import shutil
import signal
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NewType

import psutil

import shiplift
from shiplift.runtime.base.errors import ExportFailed, SandboxLimit, ShipliftError
from shiplift.runtime.records.failure import Failure
from shiplift.runtime.records.model import Isolation

# `module:function` to run in a sandbox. Named rather than imported: its module loads what only the child should.
Entry = NewType("Entry", str)
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_PR_SET_SECCOMP, _FILTER = 22, 2
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
# landlock(7): access rights of ABI 1, then those added by later ABIs
_FS_EXECUTE, _FS_WRITE_FILE, _FS_READ_FILE, _FS_READ_DIR = 1, 2, 4, 8
_FS_ALL = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
_NET_ALL = 3
_SCOPE_ALL = 3  # ABI 6: no signals to, and no abstract sockets of, processes outside
_FILE_RIGHTS = _FS_EXECUTE | _FS_WRITE_FILE | _FS_READ_FILE | (1 << 14)
# seccomp(2), as classic BPF: load a word, compare, return; per machine its audit architecture and the calls denied:
# connect, io_uring_setup, io_uring_enter, io_uring_register, ptrace, process_vm_readv, process_vm_writev, bpf, keyctl,
# add_key, request_key, userfaultfd, perf_event_open, mount, umount2, pivot_root, setns, unshare
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _DENY, _X32 = 0x7FFF0000, 0x00050001, 0x40000000
_CALLS: dict[str, tuple[int, tuple[int, ...]]] = {
    "x86_64": (
        0xC000003E,
        (42, 425, 426, 427, 101, 310, 311, 321, 250, 248, 249, 323, 298, 165, 166, 155, 308, 272),
    ),
    "aarch64": (
        0xC00000B7,
        (203, 425, 426, 427, 117, 270, 271, 280, 219, 217, 218, 282, 241, 40, 39, 41, 268, 97),
    ),
}
_SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/localtime", "/etc/mime.types", "/proc", "/sys")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_HEADROOM_MB = 1024  # shared libraries' private pages and thread stacks are not the model's fault


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the child may use: resident memory in MiB, wall-clock and CPU seconds, and one file's size in MiB.

    `task` and `settings` are for who is told of a limit: what took so much, and where it is set (nowhere: empty).
    """

    memory_mb: int
    timeout_s: int
    file_mb: int = 65536
    task: str = "loading or converting the model"
    settings: str = "export"

    def exceeded(self, limit: str, said: str) -> SandboxLimit:
        """The error for a limit, `memory_mb` or `timeout_s`; `said` is how far it went."""
        raising = f"Raise `{self.settings}.{limit}` in the spec, or make" if self.settings else "Make"
        better = "smaller" if limit == "memory_mb" else "simpler"
        return SandboxLimit(f"{self.task} {said}", do=f"{raising} the model {better}.")


class Sandbox:
    """A child that isolates itself before it imports anything, then waits for its order.

    It may read the paths in `read` and write below `work`; both must be known when it starts, since a process that has
    threads can't be locked as a whole any more. `preload` makes it import what its entry will most likely need.
    """

    def __init__(self, entry: Entry, *, read: Sequence[Path], work: Path, preload: bool = False) -> None:
        work.mkdir(parents=True, exist_ok=True)
        self.work = work
        self._result = work / "result.json"
        self._result.unlink(missing_ok=True)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the sandbox
        start = {"entry": entry, "read": [str(p) for p in read], "work": str(work), "preload": preload}
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-m", "shiplift.runtime.host.sandbox", json.dumps(start)], stdin=subprocess.PIPE,
            stdout=self._log, stderr=self._log, env=_environment(work), cwd="/", start_new_session=True,
        )  # fmt: skip

    def run(self, arguments: dict[str, Any], limits: Limits) -> tuple[dict[str, Any], Isolation]:
        """Runs the entry, `module:function(**arguments)`, once; gives its JSON result, and what isolated it.

        Raises:
            SandboxLimit: it needed more memory or time than `limits`.
            ShipliftError: whatever error of ours the function raised.
            ExportFailed: it ended in any other way.
        """
        try:
            self._send({"arguments": arguments, "limits": asdict(limits)})
            _watch(self._child, limits)
        finally:
            self._end()
        self._log.seek(0)
        said = self._log.read().decode(errors="replace")[-4000:]
        print(said, end="", file=sys.stderr)
        return _outcome(self._child.returncode, self._result, said, limits)

    def close(self) -> None:
        """Ends the child, if it still runs, and everything it started."""
        self._end()
        self._log.close()

    def _send(self, order: dict[str, Any]) -> None:
        pipe = self._child.stdin
        if pipe is None:
            raise ValueError("the child has no pipe")
        with contextlib.suppress(BrokenPipeError):  # it is gone already: its exit code says why
            pipe.write(json.dumps(order).encode() + b"\n")
            pipe.close()

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        if self._child.stdin:
            with contextlib.suppress(BrokenPipeError):
                self._child.stdin.close()


class Workplace:
    """A folder for one run: the sandbox reads all of it, and writes below `work` in it."""

    def __init__(self, entry: Entry, root: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="shiplift-", dir=root))
        self.sandbox = Sandbox(entry, read=[self.folder], work=self.folder / "work", preload=True)

    def close(self) -> None:
        """Ends the sandbox and removes the folder."""
        self.sandbox.close()
        shutil.rmtree(self.folder, ignore_errors=True)


_warm: dict[Entry, Workplace] = {}


def warm(entry: Entry, root: Path) -> None:
    """Starts a workplace ahead of time: its imports run while the caller does something else."""
    if entry not in _warm:
        _warm[entry] = Workplace(entry, root)


def cool() -> None:
    """Ends what was started ahead of time and never used."""
    while _warm:
        _warm.popitem()[1].close()


@contextmanager
def workplace(entry: Entry, root: Path) -> Iterator[Workplace]:
    """A workplace below `root`, one started ahead of time if there is one; nothing of it stays."""
    place = _warm.pop(entry, None) or Workplace(entry, root)
    try:
        yield place
    finally:
        place.close()


def _environment(work: Path) -> dict[str, str]:
    """All the child sees; nothing of ours is inherited, so no credential is."""
    return {
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        **dict.fromkeys(("HOME", "TMPDIR", "MPLCONFIGDIR", "TORCHINDUCTOR_CACHE_DIR"), str(work)),
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
            raise limits.exceeded("memory_mb", f"used {used} MiB, the limit is {limits.memory_mb} MiB")
        if time.monotonic() > deadline:
            raise _too_slow(limits)


def _memory_mb(pid: int) -> int:
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return int(sum(one.memory_info().rss for one in [process, *process.children(recursive=True)]) >> 20)
    return 0


def _too_slow(limits: Limits) -> SandboxLimit:
    return limits.exceeded("timeout_s", f"took over {limits.timeout_s} s")


def _outcome(code: int, result: Path, tail: str, limits: Limits) -> tuple[dict[str, Any], Isolation]:
    said = _read_result(result) or {}
    with contextlib.suppress(KeyError, TypeError, ValueError):  # what it wrote is not what we write: see how it ended
        if code == 0 and "value" in said:
            return said["value"], Isolation.model_validate(said["isolation"])
        if "error" in said:
            raise Failure.model_validate(said["error"]).error()
    if code == -signal.SIGXCPU:
        raise _too_slow(limits)
    if "MemoryError" in tail or "bad_alloc" in tail or "Cannot allocate memory" in tail:
        raise limits.exceeded("memory_mb", f"needed more than {limits.memory_mb} MiB")
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


def main(entry: Entry, read: Sequence[str], work: Path, *, preload: bool) -> None:
    """The child: isolate while there is one thread, import, wait for the order, and only then run what may be hostile.

    Landlock and seccomp bind the thread that asks for them, and those it starts later: libraries start threads when
    they are imported, and hostile code could make one that came before act for it.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    network = _leave_network()
    landlocked = _lock_files([Path(p) for p in read], work)
    filtered = _filter_calls()
    os.chdir(work)
    module, _, name = entry.partition(":")
    loaded = importlib.import_module(module)
    if preload:
        _preload(loaded)
    function = getattr(loaded, name)
    line = sys.stdin.readline()
    if not line:
        return  # the parent went away without an order
    order = json.loads(line)
    limits = Limits(**order["limits"])
    _limit(limits)
    isolation = Isolation(
        network="namespace" if network else "landlock" if landlocked >= 4 else "none",
        files="landlock" if landlocked else "none",
        calls="seccomp" if filtered else "none",
        memory_limit_mb=limits.memory_mb,
        timeout_s=limits.timeout_s,
    )
    try:
        said: dict[str, Any] = {"value": function(**order["arguments"]), "isolation": isolation.model_dump()}
    except ShipliftError as error:
        said = {"error": Failure.of(error).model_dump()}
    (work / "result.json").write_text(json.dumps(said))


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
    """The interpreter, its packages, those a .pth file names, and our own (an editable install lies elsewhere)."""
    ours = Path(shiplift.__file__).parent
    site = {Path(p) for p in (sys.prefix, sys.base_prefix, *sysconfig.get_paths().values())}
    named = {Path(p) for p in sys.path if Path(p).name in {"site-packages", "dist-packages"}}
    return [*site, *named, ours, *(room.resolve() for room in ours.iterdir() if room.is_dir())]


def _filter_calls() -> bool:
    """seccomp(2): calls that reach what Landlock does not cover fail with EPERM, sockets in the file system first."""
    architecture, numbers = _CALLS.get(platform.machine(), (0, ()))
    if not numbers:
        return False
    steps = [(_LOAD, 0, 0, 4), (_IF_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _DENY), (_LOAD, 0, 0, 0)]
    steps += [(_IF_AT_LEAST, len(numbers) + 1, 0, _X32)]
    steps += [(_IF_EQUAL, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
    steps += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _DENY)]
    body = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = struct.pack("=HxxxxxxQ", len(steps), ctypes.addressof(body))
    return int(ctypes.CDLL(None).prctl(_PR_SET_SECCOMP, _FILTER, program, 0, 0)) == 0


def _limit(limits: Limits) -> None:
    cpu = limits.timeout_s * (os.cpu_count() or 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 5))
    resource.setrlimit(resource.RLIMIT_DATA, ((limits.memory_mb + _HEADROOM_MB) << 20,) * 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limits.file_mb << 20,) * 2)


if __name__ == "__main__":
    start = json.loads(sys.argv[1])
    main(start["entry"], start["read"], Path(start["work"]), preload=start["preload"])
