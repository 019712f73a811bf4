"""Running code that may be hostile: a child process without credentials, network or the user's files.

Loading a logged model can run its author's code, so it happens here and nowhere else. Before importing anything else,
the child enters an empty network namespace (unshare(2)), lets Landlock (landlock(7)) forbid every path except its work
folder (write) and the paths it was passed (read), and lets seccomp(2) refuse the system calls that would bypass both.
Its environment has a dozen harmless variables, it sets resource limits (setrlimit(2)), and the parent watches its
memory and its run time.
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
# seccomp(2), as classic BPF: load a word, compare, return. Per machine: its audit architecture and the denied calls:
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
    """What the child may use: resident memory in MiB, wall-clock and CPU seconds, and the size of a file in MiB.

    `task` and `settings` are for the error: what exceeded the limit, and the spec's section that sets it (empty: none).
    """

    memory_mb: int
    timeout_s: int
    file_mb: int = 65536
    task: str = "loading or converting the model"
    settings: str = "export"

    def exceeded(self, limit: str, usage: str) -> SandboxLimit:
        """The error for a limit, `memory_mb` or `timeout_s`; `usage` says what was used against it."""
        advice = f"Raise `{self.settings}.{limit}` in the spec, or make" if self.settings else "Make"
        better = "smaller" if limit == "memory_mb" else "simpler"
        return SandboxLimit(f"{self.task} {usage}", do=f"{advice} the model {better}.")


class Sandbox:
    """A child process that isolates itself before it imports anything, then waits for a request.

    It may read the paths in `read` and write below `work`. Both must be known at the start, because a process that
    already has threads can't be restricted as a whole. `preload` imports what the entry will most likely need.
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
        """Runs the entry, `module:function(**arguments)`, once; returns its JSON result and how it was isolated.

        Raises:
            SandboxLimit: the child exceeded `limits`.
            ShipliftError: the function raised it.
            ExportFailed: the child ended in any other way.
        """
        try:
            self._send({"arguments": arguments, "limits": asdict(limits)})
            _watch(self._child, limits)
        finally:
            self._end()
        self._log.seek(0)
        output = self._log.read().decode(errors="replace")[-4000:]
        print(output, end="", file=sys.stderr)
        return _outcome(self._child.returncode, self._result, output, limits)

    def close(self) -> None:
        """Kills the child, if it still runs, and everything it started."""
        self._end()
        self._log.close()

    def _send(self, request: dict[str, Any]) -> None:
        pipe = self._child.stdin
        if pipe is None:
            raise ValueError("the child has no pipe")
        with contextlib.suppress(BrokenPipeError):  # already gone: its exit code says why
            pipe.write(json.dumps(request).encode() + b"\n")
            pipe.close()

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        if self._child.stdin:
            with contextlib.suppress(BrokenPipeError):
                self._child.stdin.close()


class Workplace:
    """A folder for one run: the sandbox reads all of it and writes only to its subfolder `work`."""

    def __init__(self, entry: Entry, root: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="shiplift-", dir=root))
        self.sandbox = Sandbox(entry, read=[self.folder], work=self.folder / "work", preload=True)

    def close(self) -> None:
        """Closes the sandbox and removes the folder."""
        self.sandbox.close()
        shutil.rmtree(self.folder, ignore_errors=True)


_warm: dict[Entry, Workplace] = {}


def warm(entry: Entry, root: Path) -> None:
    """Starts a workplace ahead of time, so that its imports run while the caller does something else."""
    if entry not in _warm:
        _warm[entry] = Workplace(entry, root)


def cool() -> None:
    """Closes the workplaces that were started ahead of time and never used."""
    while _warm:
        _warm.popitem()[1].close()


@contextmanager
def workplace(entry: Entry, root: Path) -> Iterator[Workplace]:
    """A temporary workplace below `root`; takes the one started ahead of time, if there is one."""
    place = _warm.pop(entry, None) or Workplace(entry, root)
    try:
        yield place
    finally:
        place.close()


def _environment(work: Path) -> dict[str, str]:
    """The child's whole environment: it inherits nothing, so no credentials either."""
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
    """Waits for the child.

    Raises:
        SandboxLimit: it exceeds its memory or time limit.
    """
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
        return int(sum(member.memory_info().rss for member in [process, *process.children(recursive=True)]) >> 20)
    return 0


def _too_slow(limits: Limits) -> SandboxLimit:
    return limits.exceeded("timeout_s", f"took over {limits.timeout_s} s")


def _outcome(code: int, result: Path, tail: str, limits: Limits) -> tuple[dict[str, Any], Isolation]:
    response = _read_result(result) or {}
    with contextlib.suppress(KeyError, TypeError, ValueError):  # a forged result: the exit code decides
        if code == 0 and "value" in response:
            return response["value"], Isolation.model_validate(response["isolation"])
        if "error" in response:
            raise Failure.model_validate(response["error"]).error()
    if code == -signal.SIGXCPU:
        raise _too_slow(limits)
    if "MemoryError" in tail or "bad_alloc" in tail or "Cannot allocate memory" in tail:
        raise limits.exceeded("memory_mb", f"needed more than {limits.memory_mb} MiB")
    ending = f"signal {-code}" if code < 0 else f"exit code {code}"
    raise ExportFailed(
        f"the sandboxed process ended with {ending}: {_last_line(tail)}",
        do="Run the model locally to see what it does.",
    )


def _read_result(result: Path) -> dict[str, Any] | None:
    """The child's result, if it is a small JSON object: it is untrusted data."""
    if not result.is_file() or result.stat().st_size > 16 << 20:
        return None
    with contextlib.suppress(ValueError, RecursionError):
        response = json.loads(result.read_text())
        return response if isinstance(response, dict) else None
    return None


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it wrote nothing")[:400]


# --- inside the child -----------------------------------------------------------------------------------------------


def main(entry: Entry, read: Sequence[str], work: Path, *, preload: bool) -> None:
    """The child: isolates itself while it has one thread, imports, waits for the request, then runs the entry.

    Landlock and seccomp restrict the calling thread and those it starts later. Libraries start threads on import, and
    hostile code could make a thread that was started earlier act on its behalf.
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
        return  # the parent closed the pipe without a request
    request = json.loads(line)
    limits = Limits(**request["limits"])
    _limit(limits)
    isolation = Isolation(
        network="namespace" if network else "landlock" if landlocked >= 4 else "none",
        files="landlock" if landlocked else "none",
        calls="seccomp" if filtered else "none",
        memory_limit_mb=limits.memory_mb,
        timeout_s=limits.timeout_s,
    )
    try:
        response: dict[str, Any] = {"value": function(**request["arguments"]), "isolation": isolation.model_dump()}
    except ShipliftError as error:
        response = {"error": Failure.of(error).model_dump()}
    (work / "result.json").write_text(json.dumps(response))


def _preload(module: ModuleType) -> None:
    """Imports what the entry's module lists in PRELOAD, if installed, while nobody waits for it."""
    for name in getattr(module, "PRELOAD", ()):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _leave_network() -> bool:
    """Enters an empty network namespace; False where the kernel does not let an unprivileged process create one."""
    uid, gid = os.getuid(), os.getgid()
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
        return False
    with contextlib.suppress(OSError):
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    return True


def _lock_files(read: Sequence[Path], work: Path) -> int:
    """Landlock: reads what Python and the model need, writes only below `work`. Returns the ABI, 0 if unavailable."""
    libc = ctypes.CDLL(None, use_errno=True)
    abi = int(libc.syscall(_LANDLOCK_CREATE, None, 0, 1))
    if abi < 1:
        return 0
    all_rights = _FS_ALL[min(abi, 5)]
    handled = [all_rights, _NET_ALL, _SCOPE_ALL][: 3 if abi >= 6 else 2 if abi >= 4 else 1]
    rules = struct.pack(f"={len(handled)}Q", *handled)
    handle = int(libc.syscall(_LANDLOCK_CREATE, rules, len(rules), 0))
    if handle < 0:
        return 0
    reading = _FS_EXECUTE | _FS_READ_FILE | _FS_READ_DIR
    for path in (*_python_paths(), *map(Path, _SYSTEM), *read):
        _allow(libc, handle, path, reading)
    for device in _DEVICES:
        _allow(libc, handle, Path(device), _FS_READ_FILE | _FS_WRITE_FILE)
    _allow(libc, handle, work, all_rights)
    restricted = libc.syscall(_LANDLOCK_RESTRICT, handle, 0) == 0
    os.close(handle)
    return abi if restricted else 0


def _allow(libc: ctypes.CDLL, ruleset: int, path: Path, rights: int) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            allowed = rights if path.is_dir() else rights & _FILE_RIGHTS
            libc.syscall(_LANDLOCK_ADD, ruleset, 1, struct.pack("=Qi", allowed, descriptor), 0)
        finally:
            os.close(descriptor)


def _python_paths() -> list[Path]:
    """The interpreter, its packages, those that a .pth file names, and our own (an editable install is elsewhere)."""
    ours = Path(shiplift.__file__).parent
    site = {Path(p) for p in (sys.prefix, sys.base_prefix, *sysconfig.get_paths().values())}
    named = {Path(p) for p in sys.path if Path(p).name in {"site-packages", "dist-packages"}}
    return [*site, *named, ours, *(room.resolve() for room in ours.iterdir() if room.is_dir())]


def _filter_calls() -> bool:
    """seccomp(2): system calls that reach what Landlock does not cover, such as Unix sockets, fail with EPERM."""
    architecture, numbers = _CALLS.get(platform.machine(), (0, ()))
    if not numbers:
        return False
    steps = [(_LOAD, 0, 0, 4), (_IF_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _DENY), (_LOAD, 0, 0, 0)]
    steps += [(_IF_AT_LEAST, len(numbers) + 1, 0, _X32)]
    steps += [(_IF_EQUAL, len(numbers) - index, 0, number) for index, number in enumerate(numbers)]
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
