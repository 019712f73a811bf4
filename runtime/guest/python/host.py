"""Asks a Python model, which runs in a process of its own that may raise, sleep, die, or answer anything.

The same code asks it in the sandbox, when its answers are recorded, and in Triton.

Process: Triton's Python backend, as `python_host/host.py`: `keeper.py`, `process.py`, `wire.py`; the sandbox.
Python: the server's
Packages: numpy
"""

import contextlib
import json
import os
import select
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .keeper import Keeper  # noqa: TID251 - the same import in Shiplift and in a package
from .process import ModelProcess  # noqa: TID251
from .wire import Arrays, BadMessage, Reader, pack  # noqa: TID251

START_S = 180.0
_LOOK_S = 0.1
_CHUNK = 1 << 20


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


class Paused(ModelFailed):
    """The model's process ended, and none starts before the end of a pause."""


class Host:
    """A Python model's process, restarted whenever it had to be killed.

    `settings` are those of `worker.py`, which runs in the interpreter of the model's `environment`. If that brings its
    own interpreter, it also brings the interpreter's libraries. `memory_mb` is what the process may use. If they are
    set, `load_s` is how long it may load the model, `cpu_s` the CPU time that it may use for a request, and
    `max_threads` how many threads it may have. Its libraries compute with `threads`. One that ends a request at its
    limits by itself has `grace_s` for that. A `keeper` notes how it ended, and says when the next one may start.
    Without a keeper that happens at once.
    """

    def __init__(
        self,
        code: Path,
        environment: Path,
        settings: dict[str, Any],
        *,
        threads: int = 1,
        keeper: Keeper | None = None,
        grace_s: float = 0.0,
    ) -> None:
        python = environment / "bin" / "python"
        python = python if python.exists() else python.with_name("python3")  # as in an image's own /usr
        self._command = [str(python), "-I", "-S", "-B", str(code / "worker.py"), json.dumps(settings)]
        self._memory_mb: int = settings["memory_mb"]
        self._load_s: float = settings.get("load_s") or START_S
        self._cpu_s: float | None = settings.get("cpu_s")
        self._max_threads: int | None = settings.get("max_threads")
        self._grace_s = grace_s
        counts = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
        nowhere = dict.fromkeys(("HOME", "TMPDIR"), "/nonexistent")
        libraries = environment / "python" / "lib"
        self._variables = {
            "PATH": "/usr/bin:/bin",
            "LANG": "C.UTF-8",
            **counts,
            **nowhere,
            "TORCHINDUCTOR_CACHE_DIR": str(
                code
            ),  # torch asks for a temporary folder otherwise; this one it leaves alone
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "DO_NOT_TRACK": "1",
            "GIT_PYTHON_REFRESH": "quiet",
            **({"LD_LIBRARY_PATH": str(libraries)} if libraries.is_dir() else {}),
        }
        self.form: Any = None  # of the last answer, as its process told it
        self._process: ModelProcess | None = None
        self._keeper, self._greeting = keeper, Reader()
        self._served = bool(keeper and keeper.refusal())  # before Triton's own process ended and was started again

    def start(self, limit_s: float | None = None) -> None:
        """Starts the process, if there is none, and waits until the model is loaded.

        Raises:
            Paused: the last one ended a short time ago.
            Starting: the model is not loaded within `limit_s` (default: its limit for loading); loading goes on.
            ModelFailed: the model does not load, or not within its limit.
        """
        if self._process and self._process.ready and self._process.ended:  # between two requests
            self._again(f"the model's process ended: {self._process.ending()}")
        process = self._process or self._launch()
        if not process.ready:
            self._exchange(
                process, b"", self._greeting, self._load_s if limit_s is None else limit_s, "loading the model"
            )
            process.ready = self._served = True

    def ask(self, inputs: Arrays, limit_s: float, params: dict[str, Any] | None = None) -> Arrays:
        """The answers to a batch, by name; `params` are parameters other than the logged ones.

        Raises:
            Raised: the model's code raised; the same process answers the next request.
            TookTooLong, Died: its process is gone, and another one is starting, or will after a pause.
            Starting, Paused: that process is not ready yet.
        """
        self.start(limit_s)
        if self._process is None:
            raise Died("the model's process has not been started")
        request = pack(inputs, **({"params": params} if params else {}))
        return self._exchange(self._process, request, Reader(), limit_s, "the request")

    def close(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def _launch(self) -> ModelProcess:
        if self._keeper and (why := self._keeper.refusal()):
            raise Paused(why)
        try:
            self._process = ModelProcess(
                self._command, self._variables, memory_mb=self._memory_mb, max_threads=self._max_threads
            )
        except OSError as error:
            raise Died(f"the model's Python can't be started: {error.strerror}") from error
        self._greeting = Reader()
        return self._process

    def _exchange(self, process: ModelProcess, request: bytes, reader: Reader, limit_s: float, task: str) -> Arrays:
        """Sends a request and returns the answer. Anything else that happens kills the process."""
        try:
            fields, arrays = self._talk(process, request, reader, limit_s, task)
        except BadMessage as error:
            why = f"the model's process was killed: its answer is not a message: {error}"
            self._again(why)
            raise Died(why) from error
        except ModelFailed as error:
            late = isinstance(error, TookTooLong) and not process.ready
            if late and time.monotonic() < process.launched_at + self._load_s:
                raise Starting("the model's process is starting again: send the request later") from error
            self._again(str(error))
            raise
        if "error" in fields:
            raised = Raised(str(fields["error"])[:2000])
            if not process.ready:  # it ends by itself
                self._again(f"did not load the model: {raised}")
            raise raised
        self.form = fields.get("form")
        return arrays

    def _again(self, why: str) -> None:
        """Kills the process. Without a keeper it starts another one, whose imports run before the next request."""
        process, self._process = self._process, None
        if process is None:
            return
        process.close()
        if self._keeper and self._served:
            self._keeper.crashed(_of_worker(why), process.printed)
        elif process.ready:
            with contextlib.suppress(ModelFailed):
                self._launch()

    def _talk(
        self, process: ModelProcess, request: bytes, reader: Reader, limit_s: float, task: str
    ) -> tuple[dict[str, Any], Arrays]:
        grace_s = self._grace_s if request else 0.0
        left, deadline = memoryview(request), time.monotonic() + limit_s + grace_s
        spent_s = process.use().cpu_s + self._cpu_s + grace_s if request and self._cpu_s else None
        while reader.missing:
            if time.monotonic() > deadline:
                raise TookTooLong(f"{task} was stopped after {limit_s:g} s, its limit")
            readable, writable, _ = select.select([process.back], [process.to] if left else [], [], _LOOK_S)
            if writable:
                left = left[_written(process.to, left) :]
            if readable:
                data = os.read(process.back, min(reader.missing, _CHUNK))
                if not data:
                    raise Died(f"the model's process ended: {process.ending()}")
                reader.take(data)
            if spent_s and process.use().cpu_s > spent_s:
                raise UsedTooMuch(f"{task} was stopped after {self._cpu_s:g} s of CPU time, its limit")
        return reader.message()


def _of_worker(why: str) -> str:
    """What is said of the model's worker, from what is said to a client."""
    own = "the model's process ended: it "
    if why.startswith(("did not ", own)):
        return why.removeprefix(own)
    return why.removeprefix("the model's process ") if why.startswith("the model's process ") else f"was ended: {why}"


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
