"""Runs code that may be hostile: in a confined child process, watched from outside and killed with all it started.

Loading a logged model can run its author's code, so models are loaded only here. The child confines itself before it
imports anything (`init`), with an environment of a dozen harmless variables. The parent watches its memory, tasks,
files and run time (`watch`), and trusts none of its messages (`messages`).
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import psutil

from shiplift.runtime.base.errors import ExportFailed, NotConfined, ShipliftError
from shiplift.runtime.base.text import printable
from shiplift.runtime.confinement.init import advice
from shiplift.runtime.confinement.messages import MOST_BYTES, Log, MessageReceiver, Take
from shiplift.runtime.confinement.policy import CONVERT, WAIVABLE, ConfinementPolicy, Entry, SandboxLimits
from shiplift.runtime.confinement.watch import too_slow, watch, workers
from shiplift.runtime.host.interpreter import python_paths
from shiplift.runtime.records.model import Isolation

_GONE_S = 10


class Sandbox:
    """A child process that confines itself before it imports anything, then waits for a request.

    It may read the paths in `read` and write below `work`. Both must be known at the start, because a process that
    already has threads can't be restricted as a whole. `preload` imports the modules that every request needs. `policy`
    replaces the entry's own.
    """

    def __init__(
        self,
        entry: Entry,
        *,
        read: Sequence[Path],
        work: Path,
        preload: bool = False,
        policy: ConfinementPolicy | None = None,
    ) -> None:
        work.mkdir(parents=True, exist_ok=True)
        self.work = work
        paths = tuple(str(path) for path in (*python_paths(), *read))
        self._policy = replace((policy or entry.policy).opening(read=paths), write=(str(work),))
        set_up, set_up_end = os.pipe()
        answer, answer_end = os.pipe()
        start = {"policy": self._policy.to_json(), "entry": entry.function, "preload": preload}
        self._child = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-m",
                "shiplift.runtime.confinement.child",
                json.dumps(start | {"set_up": set_up_end, "answer": answer_end}),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_environment(work),
            cwd="/",
            start_new_session=True,
            pass_fds=(set_up_end, answer_end),
        )
        os.close(set_up_end)
        os.close(answer_end)
        self._set_up, self._answer = open(set_up, "rb"), open(answer, "rb", buffering=0)  # noqa: SIM115, PTH123

    @property
    def waits(self) -> bool:
        """Whether the child is still running."""
        return self._child.poll() is None

    def expect(self, flavor: str, *, rehearse: bool = False) -> None:
        """Lets the child import what models of this flavor need, and rehearse its task, before it gets a request."""
        with contextlib.suppress(OSError, ValueError):  # already gone: its exit code says why
            os.write(self._stdin().fileno(), json.dumps({"expect": flavor, "rehearse": rehearse}).encode() + b"\n")

    def run(self, arguments: dict[str, Any], limits: SandboxLimits) -> tuple[dict[str, Any], Isolation]:
        """Runs the entry, `module:function(**arguments)`, once; returns its JSON result and how it was isolated.

        Passes the function's progress on to this process's listeners.

        Raises:
            NotConfined: the kernel refuses a mechanism that the site does not waive.
            SandboxLimit: the child exceeded `limits` or its policy.
            ShipliftError: the function raised it.
            ExportFailed: the child ended in any other way.
        """
        received, log = MessageReceiver(hostile_code=self._policy.hostile_code), Log()
        try:
            self._send(arguments, limits)
            told = self.set_up()
            takers: dict[int, Take] = {self._answer.fileno(): received.take, _pipe(self._child).fileno(): log.take}
            watch(self._child, takers, self._policy, limits)
        finally:
            self._end()
            print(log.tail(), end="", file=sys.stderr)
        isolation = _isolation(told["missing"], told["landlock_abi"], limits)
        return _outcome(self._child.returncode, received, log.tail(), limits), isolation

    def close(self) -> None:
        """Kills the child, if it still runs, and everything it started; returns when all of it is gone."""
        self._end()
        for pipe in (self._set_up, self._answer, _pipe(self._child)):
            pipe.close()

    def _send(self, arguments: dict[str, Any], limits: SandboxLimits) -> None:
        """Sends the request from a separate thread: a refused or stuck child reads nothing, and the pipe may fill."""
        request = {
            "arguments": arguments,
            "memory_mb": limits.memory_mb,
            "cpu_s": limits.timeout_s * (os.cpu_count() or 1),
            "file_mb": limits.file_mb,
            "answer_s": limits.answer_s,
        }
        line = json.dumps(request).encode() + b"\n"
        threading.Thread(target=_write, args=(self._stdin(), line), daemon=True).start()

    def _stdin(self) -> IO[bytes]:
        if self._child.stdin is None:
            raise ValueError("the child has no pipe")
        return self._child.stdin

    def set_up(self) -> dict[str, Any]:
        """Which mechanisms hold, as reported before the model's code is imported: `missing` and `landlock_abi`.

        Raises:
            NotConfined: a mechanism is missing that the policy does not waive.
        """
        text = self._set_up.read()  # returns when the child has confined itself or has died
        told: dict[str, Any] = (
            json.loads(text) if text else {"refused": "namespaces", "why": "the process ended while it set up"}
        )
        if "refused" in told:
            mechanism = told["refused"]
            raise NotConfined(
                f"the kernel refuses to confine the model's code: {mechanism}: {told['why']}", do=advice(mechanism)
            )
        return told

    def _end(self) -> None:
        """Kills the init first: the kernel then kills its whole namespace before the outer process ends."""
        below = _descendants(self._child.pid) if self._child.poll() is None else []
        for process in below:
            with contextlib.suppress(psutil.Error):
                process.kill()
        if below:  # without any, the child has not forked yet: only the signal below ends it
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(_GONE_S)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()


def probe(folder: Path) -> dict[str, str]:
    """The mechanisms that this machine's kernel refuses, with the reasons. Tries them in a child below `folder`."""
    everything = replace(CONVERT, allow_without=WAIVABLE)
    with contextlib.closing(Sandbox(Entry("os:getcwd"), read=[], work=folder / "work", policy=everything)) as box:
        missing: dict[str, str] = box.set_up()["missing"]
        return missing


def _isolation(missing: dict[str, str], landlock_abi: int, limits: SandboxLimits) -> Isolation:
    """The record of the mechanisms that hold, from those that the child lacks."""
    own, calls = "namespaces" not in missing, "seccomp" not in missing
    # Landlock restricts TCP since version 4 of its interface.
    return Isolation(
        network="namespace" if own else "seccomp" if calls else "landlock" if landlock_abi >= 4 else "none",
        processes="namespace" if own else "none",
        mounts="read-only" if own and "mounts" not in missing else "none",
        files="landlock" if "landlock" not in missing else "none",
        calls="seccomp" if calls else "none",
        memory_limit_mb=limits.memory_mb,
        timeout_s=limits.timeout_s,
    )


def _environment(work: Path) -> dict[str, str]:
    """The child's whole environment. It inherits nothing, and so no credentials."""
    return {
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        **dict.fromkeys(("HOME", "TMPDIR", "MPLCONFIGDIR", "TORCHINDUCTOR_CACHE_DIR"), str(work)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "1",
        "PROMPTFOO_DISABLE_TELEMETRY": "1",
        "GIT_PYTHON_REFRESH": "quiet",
        "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin take 100 times as long where others use the cores, too
    }


def _pipe(child: "subprocess.Popen[bytes]") -> Any:
    return child.stdout


def _write(pipe: Any, line: bytes) -> None:
    with contextlib.suppress(OSError, ValueError):  # already gone: its exit code says why
        pipe.write(line)
        pipe.close()


def _descendants(pid: int) -> list[psutil.Process]:
    """Every process below the child's outer process, the init first."""
    with contextlib.suppress(psutil.Error):
        return [*psutil.Process(pid).children(), *workers(pid)]
    return []


def _outcome(code: int, received: MessageReceiver, tail: str, limits: SandboxLimits) -> Any:
    if code == 0 and received.values:
        return received.values[-1]
    if code == 0 and received.errors:
        raise received.errors[-1]
    raise _failure(code, received, tail, limits)


def _failure(code: int, received: MessageReceiver, tail: str, limits: SandboxLimits) -> ShipliftError:
    if code == -signal.SIGXCPU:
        return too_slow(limits)
    if "MemoryError" in tail or "bad_alloc" in tail or "Cannot allocate memory" in tail:
        return limits.exceeded("memory_mb", f"needed more than {limits.memory_mb} MiB")
    do = "Run the model locally to see what it does."
    if received.too_much:
        return ExportFailed(f"the sandboxed process sent more than {MOST_BYTES >> 20} MiB", do=do)
    ending = f"signal {-code}" if code < 0 else f"exit code {code}"
    return ExportFailed(f"the sandboxed process ended with {ending}: {_last_line(tail)}", do=do)


def _last_line(text: str) -> str:
    last = next((line for line in reversed(text.splitlines()) if line.strip()), "it wrote nothing")
    return printable(last, limit=400)
