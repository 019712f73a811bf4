"""Runs the Python steps of a pipeline separately from it: each instance of this model has one worker process.

Triton hands the calls of all the pipeline's instances to any free worker, and counts how long they wait and take. If a
call does not end in time, or its worker is beyond a limit, the worker is killed; only that call fails. Another one
starts after a pause, each twice as long as the one before: calls that can wait for its end do. What a worker has
started ends with it, wherever that went: this process adopts orphans.

Process: Triton's Python backend, as `model.py`: `pipeline_messages.py`, `keeper.py`, `step_use.py`.
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
import threading
import time
from collections.abc import Mapping, Sequence
from io import BufferedReader, BufferedWriter
from typing import Any, NoReturn, cast

sys.path[:0] = [path for path in os.environ.get("SHIPLIFT_SERVER_SITE", "").split(os.pathsep) if path]

import numpy as np
import pipeline_messages as messages
import step_use
import triton_python_backend_utils as pb_utils
from keeper import Keeper
from numpy.typing import NDArray

START_S = 60  # to import the author's modules
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
_END_S = 10.0  # for killing what a worker started, and what that starts meanwhile
_LOOK_S = 0.5


class CallFailed(Exception):
    """A call has no answer. The text is for the client."""


class TritonPythonModel:
    """An instance, and its worker."""

    def initialize(self, args: Mapping[str, str]) -> None:
        folder = os.path.join(args["model_repository"], args["model_version"])
        with open(os.path.join(folder, "pool.json")) as file:
            pool = json.load(file)
        self.keeper = Keeper(args["model_name"], int(args["model_version"]))
        self.worker = Worker(folder, pool["functions"], pool["limits"], self.keeper)
        try:
            self.worker.wait_until_ready(START_S)
        except CallFailed as error:
            self.worker.stop()
            raise pb_utils.TritonModelException(f"the Python steps can't be loaded: {error}") from error

    def finalize(self) -> None:
        self.worker.stop()
        self.keeper.forget()

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
    """The process that runs the author's functions, one at a time. It is started again after it was killed.

    `limits` has the MiB that it may allocate, how many processes it may be, its open files, the MiB of a file, and the
    seconds of CPU time that a call may take (None: as many as it likes in its time).
    """

    _process: subprocess.Popen[bytes] | None
    _ready: bool
    _to: BufferedWriter
    _back: BufferedReader

    def __init__(self, folder: str, functions: Sequence[Any], limits: Mapping[str, Any], keeper: Keeper) -> None:
        worker = os.path.join(folder, "pipeline_worker.py")
        author = os.path.join(folder, "python")
        self._command = [python(), worker, author, json.dumps(limits), json.dumps(functions)]
        self._limits, self._keeper = limits, keeper
        self._served, self._closing, self._lock = False, threading.Event(), threading.RLock()
        self._start()
        threading.Thread(target=self._police, daemon=True).start()

    def wait_until_ready(self, seconds: float) -> None:
        """Waits until the author's modules are imported.

        Raises:
            CallFailed: they are not imported in time, or can't be imported.
        """
        end = time.monotonic() + seconds
        if self._process is not None and self._process.poll() is not None and self._ready:  # between two calls
            self._end(self._ending())
        if self._process is None:
            self._wait_for_pause(end)
            self._start()
        if self._ready:
            return
        header, _ = messages.unpacked(self._received(end, f"no start within {seconds:g} s"))
        if "error" in header:
            self._end(f"did not start: {header['error']}")
            raise CallFailed(str(header["error"])[:1000])
        self._ready = self._served = True

    def call(self, message: memoryview, end: float, late: str) -> bytearray:
        """The answer to a message. At `end` the process is killed, and the error says `late`.

        Raises:
            CallFailed: there is no answer.
        """
        if self._limits["cpu_s"]:  # to ask every process of the machine costs milliseconds, and each call waits for it
            self._began_s = step_use.use_of(self._pids()).cpu_s
        self._calling = True
        try:
            messages.send(self._to, [message])
        except OSError:
            self._ended()
        try:
            return self._received(end, late)
        finally:
            self._calling = False

    def stop(self) -> None:
        """Kills the process, whatever it is doing, and everything that it started."""
        self._closing.set()
        self._stop()

    def _start(self) -> None:
        self._ready = self._calling = False
        self._beyond, self._began_s = "", 0.0
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
        with self._lock:
            self._others = set(step_use.children(os.getpid()))
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._to = cast("BufferedWriter", self._process.stdin)
        self._back = cast("BufferedReader", self._process.stdout)

    def _stop(self) -> None:
        with self._lock:
            process, self._process = self._process, None
            if process is not None:
                process.kill()
                process.wait()
                end_orphans(self._others)
                self._to.detach().close()
                self._back.close()

    def _end(self, why: str) -> None:
        """Kills the process; the next one starts after a pause."""
        self._stop()
        if self._served:
            self._keeper.crashed(why)

    def _wait_for_pause(self, end: float) -> None:
        while why := self._keeper.refusal():
            left = end - time.monotonic()
            if self._keeper.left_s() > left:
                raise CallFailed(why)
            time.sleep(min(_LOOK_S, max(left, 0.0)))

    def _pids(self) -> set[int]:
        """What the worker is: its process, and those that lost their parents."""
        return set(step_use.children(os.getpid())) - self._others

    def _police(self) -> None:
        """Ends what is beyond its limits, also between calls."""
        while not self._closing.wait(_LOOK_S):
            with self._lock:
                process = self._process
                if process is None or process.poll() is not None:
                    continue
                use = step_use.use_of(self._pids())
                if why := step_use.beyond(use, self._limits, use.cpu_s - self._began_s if self._calling else 0.0):
                    self._beyond = why
                    process.kill()
                    end_orphans(self._others)

    def _received(self, end: float, late: str) -> bytearray:
        prefix = self._exactly(messages.PREFIX_BYTES, end, late)
        try:
            count = messages.length(prefix)
        except messages.Broken as error:
            self._end(str(error))
            raise CallFailed(str(error)) from error
        return self._exactly(count, end, late)

    def _exactly(self, count: int, end: float, late: str) -> bytearray:
        """Reads `count` bytes from the process."""
        received, pipe = bytearray(), self._back.fileno()
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        while len(received) < count:
            if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
                self._end(f"was ended: {late}")
                raise CallFailed(late)
            part = os.read(pipe, count - len(received))
            if not part:
                self._ended()
            received += part
        return received

    def _ending(self) -> str:
        """How the process ended."""
        code = self._process.wait() if self._process else 0
        return f"was ended: {self._beyond}" if self._beyond else f"its process ended with {code}"

    def _ended(self) -> NoReturn:
        why = self._ending()
        self._end(why)
        raise CallFailed(why)


def end_orphans(others: set[int]) -> None:
    """Kills this process's children but for `others`, and theirs, which become its own when their parent ends."""
    end = time.monotonic() + _END_S
    while (left := set(step_use.children(os.getpid())) - others) and time.monotonic() < end:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def python() -> str:
    """The interpreter of the server's environment, whose packages the author's code may import."""
    site = os.environ.get("SHIPLIFT_SERVER_SITE", "").split(os.pathsep)[0]
    own = os.path.normpath(os.path.join(site, "..", "..", "..", "bin", "python"))
    return own if site and os.path.exists(own) else shutil.which("python3") or sys.executable
