"""Asks a Python model, which runs in a process of its own that may raise, sleep, die, or answer anything.

The same code asks it in the sandbox, when its answers are recorded, and in Triton.

Process: Triton's Python backend, as `python_host/host.py` beside `wire.py`; Shiplift's sandbox.
Python: the server's
Packages: numpy
"""

import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .wire import Arrays, BadMessage, Reader, pack  # noqa: TID251 - the same import in Shiplift and in a package

START_S = 180.0
_LOOK_S = 0.1
_CHUNK = 1 << 20
_MIB = 1 << 20


class ModelFailed(Exception):
    """The model did not answer. `str()` is for the client that asked."""


class Raised(ModelFailed):
    """The model's code raised an exception. It can be asked again."""


class Died(ModelFailed):
    """The model's process ended, or had to be killed, but not because of its time limit."""


class TookTooLong(ModelFailed):
    """The model exceeded its time limit, so its process was killed."""


class UsedTooMuch(TookTooLong):
    """The same, of its CPU time."""


class Starting(ModelFailed):
    """The model's process was killed earlier, and the next one has not loaded the model yet."""


class Host:
    """A Python model's process, restarted whenever it had to be killed.

    `settings` are those of `worker.py`, which runs in the interpreter of the model's `environment`. If that brings its
    own interpreter, it also brings the interpreter's libraries. `memory_mb` is what the process may use. If they are
    set, `load_s` is how long it may load the model, `cpu_s` the CPU time that it may use for a request, and
    `max_threads` how many threads it may have. Its libraries compute with `threads`.
    """

    def __init__(self, code: Path, environment: Path, settings: dict[str, Any], *, threads: int = 1) -> None:
        python = environment / "bin" / "python"
        python = python if python.exists() else python.with_name("python3")  # as in an image's own /usr
        self._command = [str(python), "-I", "-S", "-B", str(code / "worker.py"), json.dumps(settings)]
        self._memory_mb: int = settings["memory_mb"]
        self._load_s: float = settings.get("load_s") or START_S
        self._cpu_s: float | None = settings.get("cpu_s")
        self._max_threads: int | None = settings.get("max_threads")
        counts = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
        nowhere = dict.fromkeys(("HOME", "TMPDIR"), "/nonexistent")
        libraries = environment / "python" / "lib"
        self._variables = {
            "PATH": "/usr/bin:/bin",
            "LANG": "C.UTF-8",
            **counts,
            **nowhere,
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "DO_NOT_TRACK": "1",
            "GIT_PYTHON_REFRESH": "quiet",
            **({"LD_LIBRARY_PATH": str(libraries)} if libraries.is_dir() else {}),
        }
        self.form: Any = None  # of the last answer, as its process told it
        self._process: subprocess.Popen[bytes] | None = None
        self._ready, self._launched_at, self._greeting = False, 0.0, Reader()

    def start(self, limit_s: float | None = None) -> None:
        """Starts the process, if there is none, and waits until the model is loaded.

        Raises:
            Starting: the model is not loaded within `limit_s` (default: its limit for loading); loading goes on.
            ModelFailed: the model does not load, or not within its limit.
        """
        if self._process is None:
            self._launch()
        if not self._ready:
            self._exchange(b"", self._greeting, self._load_s if limit_s is None else limit_s, "loading the model")
            self._ready = True

    def ask(self, inputs: Arrays, limit_s: float, params: dict[str, Any] | None = None) -> Arrays:
        """The answers to a batch, by name; `params` are parameters other than the logged ones.

        Raises:
            Raised: the model's code raised; the same process answers the next request.
            TookTooLong, Died: its process is gone, and another one is starting.
            Starting: that process is not ready yet.
        """
        self.start(limit_s)
        return self._exchange(pack(inputs, **({"params": params} if params else {})), Reader(), limit_s, "the request")

    def close(self) -> None:
        """Ends the process."""
        process, self._process, self._ready = self._process, None, False
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe:
                    pipe.close()

    def _launch(self) -> None:
        try:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self._variables, cwd="/", bufsize=0
            )
        except OSError as error:
            raise Died(f"the model's Python can't be started: {error.strerror}") from error
        self._launched_at, self._greeting = time.monotonic(), Reader()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                os.set_blocking(pipe.fileno(), False)

    def _exchange(self, request: bytes, reader: Reader, limit_s: float, task: str) -> Arrays:
        """Sends a request and returns the answer. Anything else that happens kills the process."""
        try:
            fields, arrays = self._talk(request, reader, limit_s, task)
        except BadMessage as error:
            self._again()
            raise Died(f"the model's process was killed: its answer is not a message: {error}") from error
        except ModelFailed as error:
            if isinstance(error, TookTooLong) and not self._ready and self._may_still_start():
                raise Starting("the model's process is starting again: send the request later") from error
            self._again()
            raise
        if "error" in fields:
            raise Raised(str(fields["error"])[:2000])
        self.form = fields.get("form")
        return arrays

    def _may_still_start(self) -> bool:
        return time.monotonic() < self._launched_at + self._load_s

    def _again(self) -> None:
        """Kills the process and starts another one, whose imports run before the next request."""
        loaded = self._ready
        self.close()
        if loaded:
            with contextlib.suppress(ModelFailed):
                self._launch()

    def _talk(self, request: bytes, reader: Reader, limit_s: float, task: str) -> tuple[dict[str, Any], Arrays]:
        to, back = self._pipes()
        left, deadline, began_s = memoryview(request), time.monotonic() + limit_s, self._use()[1]
        while reader.missing:
            if time.monotonic() > deadline:
                raise TookTooLong(f"{task} was stopped after {limit_s:g} s, its limit")
            readable, writable, _ = select.select([back], [to] if left else [], [], _LOOK_S)
            if writable:
                left = left[_written(to, left) :]
            if readable:
                data = os.read(back, min(reader.missing, _CHUNK))
                if not data:
                    raise Died(f"the model's process ended: {self._ending()}")
                reader.take(data)
            self._check_use(began_s if request else None)
        return reader.message()

    def _pipes(self) -> tuple[int, int]:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise Died("the model's process has not been started")
        return process.stdin.fileno(), process.stdout.fileno()

    def _ending(self) -> str:
        code = self._process.wait(5) if self._process else 0
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def _check_use(self, began_s: float | None) -> None:
        """Checks what the process uses; a request began when it had used `began_s` of CPU time (None: it loads)."""
        memory_mb, cpu_s, threads = self._use()
        if memory_mb > self._memory_mb:
            raise Died(f"the model's process used {memory_mb} MiB, the limit is {self._memory_mb} MiB")
        if self._max_threads and threads > self._max_threads:
            raise Died(f"the model's process had {threads} threads, the limit is {self._max_threads}")
        if self._cpu_s and began_s is not None and cpu_s - began_s > self._cpu_s:
            raise UsedTooMuch(f"the request was stopped after {self._cpu_s:g} s of CPU time, its limit")

    def _use(self) -> tuple[int, float, int]:
        """The process's memory in MiB, CPU time in seconds, and number of threads; zeros if it has ended."""
        if self._process is None:
            return 0, 0.0, 0
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
            pages, ticks, threads = int(fields[21]), int(fields[11]) + int(fields[12]), int(fields[17])
            return pages * os.sysconf("SC_PAGE_SIZE") // _MIB, ticks / os.sysconf("SC_CLK_TCK"), threads
        return 0, 0.0, 0


def _written(to: int, data: memoryview) -> int:
    try:
        return os.write(to, data[:_CHUNK])
    except BlockingIOError:
        return 0
    except BrokenPipeError:  # the process ended; reading tells how
        return len(data)


def rows(arrays: Arrays) -> int:
    """The number of samples in a batch."""
    return len(next(iter(arrays.values())))


def split(arrays: Arrays, sizes: Sequence[int]) -> list[Arrays]:
    """The answers to the requests of a batch.

    Raises:
        Raised: an answer does not have one row per sample.
    """
    total = sum(sizes)
    for name, array in arrays.items():
        if len(array) != total:
            raise Raised(f"predict answered {len(array)} rows of {name!r} to {total} samples")
    parts, at = [], 0
    for size in sizes:
        parts.append({name: array[at : at + size] for name, array in arrays.items()})
        at += size
    return parts
