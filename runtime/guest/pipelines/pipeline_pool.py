"""Runs the Python steps of a pipeline separately from it: each instance of this model has one worker process.

Triton hands the calls of all the pipeline's instances to any free worker, and counts how long they wait and take. If a
call does not end in time, its worker is killed and replaced; only that call fails. What a worker has started ends with
it, wherever that went: this process adopts orphans.

Process: Triton's Python backend, as `model.py` beside `pipeline_messages.py` and `pipeline_worker.py`.
Python: the server's
Packages: numpy
"""

from __future__ import annotations  # so that annotations are not evaluated: Triton's module lacks names of its types

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from io import BufferedReader, BufferedWriter
from typing import Any, NoReturn, cast

sys.path[:0] = [path for path in os.environ.get("SHIPLIFT_SERVER_SITE", "").split(os.pathsep) if path]

import numpy as np
import pipeline_messages as messages
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

START_S = 60  # to import the author's modules
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
_END_S = 5.0  # for killing what a worker started, and what that starts meanwhile


class CallFailed(Exception):
    """A call has no answer. The text is for the client."""


class TritonPythonModel:
    """An instance, and its worker."""

    def initialize(self, args: Mapping[str, str]) -> None:
        folder = os.path.join(args["model_repository"], args["model_version"])
        with open(os.path.join(folder, "pool.json")) as file:
            pool = json.load(file)
        self.worker = Worker(folder, pool["functions"], pool["memory_mb"])
        try:
            self.worker.wait_until_ready(START_S)
        except CallFailed as error:
            self.worker.stop()
            raise pb_utils.TritonModelException(f"the Python steps can't be loaded: {error}") from error

    def finalize(self) -> None:
        self.worker.stop()

    def execute(self, requests: Sequence[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        return [self._response(request) for request in requests]

    def _response(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        call = pb_utils.get_input_tensor_by_name(request, "call").as_numpy()
        limit_s, deadline = pb_utils.get_input_tensor_by_name(request, "limits").as_numpy().tolist()
        try:
            answer = self._answer(call, limit_s, deadline)
        except CallFailed as error:
            return pb_utils.InferenceResponse([], pb_utils.TritonError(str(error)))
        return pb_utils.InferenceResponse([pb_utils.Tensor("answer", np.frombuffer(answer, np.uint8))])

    def _answer(self, call: NDArray[Any], limit_s: float, deadline: float) -> bytearray:
        """The answer to a call. Its time begins now, but its caller waits until the deadline at most."""
        now = time.monotonic()
        if now >= deadline:
            raise CallFailed("its caller no longer waits for it")
        self.worker.wait_until_ready(deadline - now)
        end = min(deadline, time.monotonic() + limit_s)
        return self.worker.call(call.data, end, f"it has not ended after {limit_s:g} s, its limit")


class Worker:
    """The process that runs the author's functions, one at a time. It is restarted after it was killed."""

    _ready: bool

    def __init__(self, folder: str, functions: Sequence[Any], memory_mb: int) -> None:
        worker = os.path.join(folder, "pipeline_worker.py")
        author = os.path.join(folder, "python")
        self._command = [python(), worker, author, str(memory_mb), json.dumps(functions)]
        self._start()

    def wait_until_ready(self, seconds: float) -> None:
        """Waits until the author's modules are imported.

        Raises:
            CallFailed: they are not imported in time, or can't be imported.
        """
        if self._ready:
            return
        header, _ = messages.unpacked(self._received(time.monotonic() + seconds, f"no start within {seconds:g} s"))
        if "error" in header:
            self._restart()
            raise CallFailed(str(header["error"])[:1000])
        self._ready = True

    def call(self, message: memoryview, end: float, late: str) -> bytearray:
        """The answer to a message. At `end` the process is killed, and the error says `late`.

        Raises:
            CallFailed: there is no answer.
        """
        try:
            messages.send(self._to, [message])
        except OSError:
            self._ended()
        return self._received(end, late)

    def stop(self) -> None:
        """Kills the process, whatever it is doing, and everything that it started."""
        self._process.kill()
        self._process.wait()
        end_orphans(self._others)

    def _start(self) -> None:
        self._ready = False
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
        self._others = set(children())
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._to = cast("BufferedWriter", self._process.stdin)
        self._back = cast("BufferedReader", self._process.stdout)

    def _restart(self) -> None:
        self.stop()
        self._to.detach().close()
        self._back.close()
        self._start()

    def _received(self, end: float, late: str) -> bytearray:
        prefix = self._exactly(messages.PREFIX_BYTES, end, late)
        try:
            count = messages.length(prefix)
        except messages.Broken as error:
            self._restart()
            raise CallFailed(str(error)) from error
        return self._exactly(count, end, late)

    def _exactly(self, count: int, end: float, late: str) -> bytearray:
        """Reads `count` bytes from the process."""
        received, pipe = bytearray(), self._back.fileno()
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        while len(received) < count:
            if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
                self._restart()
                raise CallFailed(late)
            part = os.read(pipe, count - len(received))
            if not part:
                self._ended()
            received += part
        return received

    def _ended(self) -> NoReturn:
        code = self._process.wait()
        self._restart()
        raise CallFailed(f"its process ended with {code}")


def children() -> Iterator[int]:
    """The processes whose parent is this one; none where /proc does not show them."""
    with contextlib.suppress(OSError):
        for entry in os.listdir("/proc"):
            with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{int(entry)}/stat") as file:
                if int(file.read().rpartition(")")[2].split()[1]) == os.getpid():
                    yield int(entry)


def end_orphans(others: set[int]) -> None:
    """Kills this process's children but for `others`, and theirs, which become its own when their parent ends."""
    end = time.monotonic() + _END_S
    while (left := set(children()) - others) and time.monotonic() < end:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def python() -> str:
    """The interpreter of the server's environment, whose packages the author's code may import."""
    site = os.environ.get("SHIPLIFT_SERVER_SITE", "").split(os.pathsep)[0]
    own = os.path.normpath(os.path.join(site, "..", "..", "..", "bin", "python"))
    return own if site and os.path.exists(own) else shutil.which("python3") or sys.executable
