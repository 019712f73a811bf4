"""Runs a pipeline of models inside Triton's Python backend (BLS), as `pipeline.json` beside it says.

Steps start as soon as their tensors exist. Threads call the members, which answer from wherever they run, and the
workers that run the author's Python (`pipeline_pool.py`). Every wait has a deadline: a member that does not answer in
time is abandoned until the limit of its own execution ends it, and a worker is killed.

Process: Triton's Python backend, as `model.py` beside `pipeline_messages.py`.
Python: the server's
Packages: numpy
"""

from __future__ import annotations  # so that annotations are not evaluated: Triton's module lacks names of its types

import contextlib
import functools
import json
import math
import os
import queue
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

sys.path[:0] = [path for path in os.environ.get("SHIPLIFT_SERVER_SITE", "").split(os.pathsep) if path]

import numpy as np
import pipeline_messages as messages
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

Arrays = dict[str, Any]
Step = dict[str, Any]  # as in `pipeline.json`
Call = Future[Arrays]

THREADS = 32  # concurrent calls of members
KEPT_BYTES = 16 << 20  # larger files in shared memory are not kept for the next call
BUNDLE = "bundle"


class StepFailed(Exception):
    """A step failed, or a request can't be answered. The text is for the client."""


class TritonPythonModel:
    """An instance, which answers one request at a time."""

    def initialize(self, args: Mapping[str, str]) -> None:
        folder = os.path.join(args["model_repository"], args["model_version"])
        with open(os.path.join(folder, "pipeline.json")) as file:
            self.plan: dict[str, Any] = json.load(file)
        self.bundle = pb_utils.Tensor(BUNDLE, np.array([self.plan["bundle"].encode()], dtype=object))
        self.threads = ThreadPoolExecutor(THREADS)
        self.slots = Slots()
        self.needed: dict[frozenset[str], list[Step]] = {}

    def finalize(self) -> None:
        self.slots.remove()
        self.threads.shutdown(wait=False, cancel_futures=True)

    def execute(self, requests: Sequence[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        return [self._response(request) for request in requests]

    def _response(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        wanted = set(request.requested_output_names())
        try:
            outputs = self._outputs(request, wanted - {BUNDLE})
        except StepFailed as error:
            return pb_utils.InferenceResponse([], pb_utils.TritonError(f"pipeline {self.plan['pipeline']}: {error}"))
        tensors = [pb_utils.Tensor(name, array) for name, array in outputs.items()]
        return pb_utils.InferenceResponse([*tensors, *([self.bundle] if BUNDLE in wanted else [])])

    def _outputs(self, request: pb_utils.InferenceRequest, wanted: set[str]) -> Arrays:
        values = {name: pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in self.plan["inputs"]}
        run = Execution(self, values, self._steps(frozenset(wanted)))
        run.finish()
        return {
            name: self._promised(name, kind, run.values)
            for name, kind in self.plan["outputs"].items()
            if name in wanted
        }

    def _promised(self, name: str, kind: Mapping[str, Any], values: Arrays) -> NDArray[Any]:
        """An output, checked against the shape that clients were promised."""
        array: NDArray[Any] = values[name]
        if not fits(array.shape, kind["shape"]):
            raise StepFailed(f"the output {name} has the shape {list(array.shape)}, which is not {kind['shape']}")
        return array

    def _steps(self, wanted: frozenset[str]) -> list[Step]:
        """The steps that the wanted outputs need, in their order."""
        if wanted not in self.needed:
            tensors = set(wanted)
            steps: list[Step] = []
            for step in reversed(self.plan["steps"]):
                if tensors & set(step["outputs"].values()):
                    steps.append(step)
                    tensors |= takes(step)
            self.needed[wanted] = steps[::-1]
        return self.needed[wanted]


def takes(step: Step) -> set[str]:
    """The tensors that must exist before a step can start."""
    looked_at = {step["when"]["tensor"]} if step["when"] else set()
    return {*step["inputs"].values(), *step["otherwise"].values(), *looked_at}


def fits(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether an array has the wanted shape; -1 stands for any size."""
    return len(shape) == len(wanted) and all(want in (-1, size) for size, want in zip(shape, wanted))


class Execution:
    """One request on its way through the steps; `values` are the tensors so far."""

    def __init__(self, model: TritonPythonModel, values: Arrays, steps: Sequence[Step]) -> None:
        self.model, self.values, self.pending = model, values, list(steps)
        # By name: the step, its calls in the order of the rows, and the time by which it must have ended.
        self.under_way: dict[str, tuple[Step, list[Call], float]] = {}
        self.left: dict[str, int] = {}  # how many calls of each step are unfinished
        self.told: queue.SimpleQueue[tuple[str, Call]] = queue.SimpleQueue()  # steps with a call that has ended
        self.deadline: float = time.monotonic() + model.plan["timeout_s"]

    def finish(self) -> None:
        """Runs every step.

        Raises:
            StepFailed: a step failed and its `on_error` has no substitute; or time is up.
        """
        try:
            while self._start() or self.under_way:
                self._wait()
        finally:
            for _, calls, _ in self.under_way.values():
                abandon(calls)

    def _start(self) -> bool:
        """Starts every step that can start; steps that don't run may let others start. Returns whether any is left."""
        while ready := [step for step in self.pending if takes(step) <= self.values.keys()]:
            for step in ready:
                self.pending.remove(step)
                self._begin(step)
        return bool(self.pending)

    def _begin(self, step: Step) -> None:
        try:
            if step["when"] and not holds(step["when"], self.values[step["when"]["tensor"]]):
                self._without(step)
                return
            calls = self._calls(step)
        except StepFailed as error:
            self._failed(step, error)
            return
        if not calls:
            self.values |= no_rows(step)
            return
        name = step["name"]
        self.under_way[name] = step, calls, self._end(step)
        self.left[name] = len(calls)
        for call in calls:
            call.add_done_callback(functools.partial(self._note, name))

    def _end(self, step: Step) -> float:
        """When a step that begins now must have ended. The time of a Python step begins when a worker is free."""
        limit_s = math.inf if "python" in step else step["timeout_s"] or math.inf
        return min(self.deadline, time.monotonic() + limit_s)

    def _note(self, name: str, call: Call) -> None:
        self.told.put((name, call))

    def _calls(self, step: Step) -> list[Call]:
        inputs = {key: self.values[tensor] for key, tensor in step["inputs"].items()}
        if "python" in step:
            return [self.model.threads.submit(run_python, step, inputs, self.deadline, self.model.slots)]
        return [self.model.threads.submit(ask, step, rows) for rows in parts(step, inputs)]

    def _wait(self) -> None:
        """Waits until a call has ended, or a step is due."""
        ends = min((end for _, _, end in self.under_way.values()), default=self.deadline)
        try:
            name, call = self.told.get(timeout=max(0, ends - time.monotonic()))
        except queue.Empty:
            self._expire()
            return
        if name not in self.under_way:  # it has failed already
            return
        self.left[name] -= 1
        if error := call.exception():
            self._stop(name, error)
        elif not self.left[name]:
            step, calls, _ = self.under_way.pop(name)
            try:
                self.values |= joined(step, [call.result() for call in calls])
            except StepFailed as failed:
                self._failed(step, failed)

    def _expire(self) -> None:
        """Ends the steps whose time is up."""
        now = time.monotonic()
        if now >= self.deadline:
            limit = f"{self.model.plan['timeout_s']:g} s, the limit of a request"
            raise StepFailed(f"step {', '.join(self.under_way)}: it has not ended after {limit}")
        for name, (step, _, end) in list(self.under_way.items()):
            if now >= end:
                self._stop(name, StepFailed(f"it has not ended after {step['timeout_s']:g} s, its limit"))

    def _stop(self, name: str, error: BaseException) -> None:
        step, calls, _ = self.under_way.pop(name)
        abandon(calls)
        self._failed(step, error)

    def _failed(self, step: Step, error: BaseException) -> None:
        if step["on_error"] == "fail":
            raise StepFailed(f"step {step['name']}: {error}") from error
        print(f"shiplift: {self.model.plan['pipeline']}: step {step['name']}: {error}", file=sys.stderr, flush=True)
        if step["on_error"] == "skip":
            self._without(step)
        else:
            self.values |= constants(step, self.values)

    def _without(self, step: Step) -> None:
        """The tensors of a step that does not run: their substitutes, or no rows."""
        stand_ins = {tensor: self.values[other] for tensor, other in step["otherwise"].items()}
        self.values |= no_rows(step) | stand_ins


def abandon(calls: Sequence[Call]) -> None:
    """Cancels the calls that have not begun; the others end by themselves, at their limits."""
    for call in calls:
        call.cancel()


# --- members -----------------------------------------------------------------------------------------------


def parts(step: Step, inputs: Arrays) -> list[Arrays]:
    """The inputs of each call of a member: all rows at once, or in a loop as many as the member takes."""
    loop = step["for_each"]
    iterated = [key for key, tensor in step["inputs"].items() if not loop or tensor in loop["over"]]
    counts = {step["inputs"][key]: len(inputs[key]) for key in iterated}
    if len(set(counts.values())) > 1:
        raise StepFailed(f"its inputs differ in their number of rows: {counts}")
    rows = next(iter(counts.values()))
    if loop and rows > loop["max"]:
        raise StepFailed(f"{', '.join(counts)} has {rows} rows, the limit is {loop['max']} (`for_each.max`)")
    for key, array in inputs.items():
        if key not in iterated and len(array) != 1:
            raise StepFailed(f"{step['inputs'][key]} has {len(array)} rows, and is not part of the loop: it needs one")
    if not rows:
        return []
    if not loop:
        return [inputs]
    starts = range(0, rows, step["rows"])
    return [
        {
            key: array[start : start + step["rows"]]
            if key in iterated
            else np.repeat(array, min(step["rows"], rows - start), axis=0)
            for key, array in inputs.items()
        }
        for start in starts
    ]


def ask(step: Step, inputs: Arrays) -> Arrays:
    """A member's answer to one request."""
    tensors = {key: np.ascontiguousarray(array) for key, array in inputs.items()}
    response = executed(step["model"], step["version"], tensors, list(step["outputs"]))
    return {
        tensor: pb_utils.get_output_tensor_by_name(response, key).as_numpy() for key, tensor in step["outputs"].items()
    }


def executed(model: str, version: int, tensors: Arrays, outputs: Sequence[str]) -> pb_utils.InferenceResponse:
    """The response of another model on this server."""
    response = pb_utils.InferenceRequest(
        model_name=model,
        model_version=version,
        requested_output_names=outputs,
        inputs=[pb_utils.Tensor(key, array) for key, array in tensors.items()],
    ).exec()
    if response.has_error():
        raise StepFailed(response.error().message())
    return response


def joined(step: Step, answers: Sequence[Arrays]) -> Arrays:
    """The tensors of a step, joined from the answers to its calls."""
    if "python" in step:
        return returned(step, answers[0])
    if len(answers) == 1:
        return answers[0]
    try:
        return {tensor: np.concatenate([answer[tensor] for answer in answers]) for tensor in answers[0]}
    except ValueError as error:
        raise StepFailed(f"its answers for different rows differ in their shapes: {error}") from error


def returned(step: Step, answer: Arrays) -> Arrays:
    """What a Python function returned, checked against the pipeline's types."""
    if answer.keys() != step["types"].keys():
        raise StepFailed(f"it returned {sorted(answer)}, the pipeline says {sorted(step['types'])}")
    for tensor, kind in step["types"].items():
        actual = messages.datatype(answer[tensor])
        if actual != kind["datatype"] or not fits(answer[tensor].shape, kind["shape"]):
            shape = list(answer[tensor].shape)
            raise StepFailed(
                f"it returned {tensor} as {actual}{shape}, the pipeline says {kind['datatype']}{kind['shape']}"
            )
    return answer


# --- conditions and substitutes ----------------------------------------------------------------------------


def holds(when: Mapping[str, Any], array: NDArray[Any]) -> bool:
    """Whether a condition lets its step run."""
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise StepFailed(f"its condition can't be decided: {when['tensor']} has NaN")
    limit = when["limit"].encode() if isinstance(when["limit"], str) else when["limit"]
    compare = {"below": np.less, "at_least": np.greater_equal, "equals": np.equal}[when["is"]]
    return bool(getattr(np, when["of"])(compare(array, limit)))


def no_rows(step: Step) -> Arrays:
    """The outputs of a step that does not run: no rows of each tensor."""
    return {
        tensor: np.zeros([0, *(max(size, 0) for size in kind["shape"][1:])], dtype=numpy_type(kind["datatype"]))
        for tensor, kind in step["types"].items()
    }


def constants(step: Step, values: Arrays) -> Arrays:
    """The declared values of a step that failed."""
    rows = 1 if "python" in step else len(values[next(iter(step["inputs"].values()))])
    filled = {}
    for tensor, constant in step["defaults"].items():
        kind, value = step["types"][tensor], constant["value"]
        own = [rows if kind["shape"][0] == -1 else kind["shape"][0], *kind["shape"][1:]]
        value = value.encode() if isinstance(value, str) else value
        filled[tensor] = np.full(
            own if constant["shape"] is None else constant["shape"], value, dtype=numpy_type(kind["datatype"])
        )
    return filled


def numpy_type(datatype: str) -> type[Any]:
    """The NumPy type of an array's items."""
    return object if datatype == "BYTES" else pb_utils.triton_string_to_numpy(f"TYPE_{datatype}")


# --- the author's Python -----------------------------------------------------------------------------------


class Slots:
    """Files in shared memory for large tensors. Each call has its own slot: two files, which are used again."""

    def __init__(self) -> None:
        self._free: queue.LifoQueue[str] = queue.LifoQueue()

    @contextlib.contextmanager
    def taken(self) -> Iterator[tuple[str, str]]:
        """Two files for one call: one for its inputs, one for its answer."""
        try:
            slot = self._free.get_nowait()
        except queue.Empty:
            slot = os.path.join(messages.SHARED_MEMORY, f"shiplift-{uuid.uuid4().hex}")
        try:
            yield slot, f"{slot}.answer"
        finally:
            for path in (slot, f"{slot}.answer"):
                with contextlib.suppress(FileNotFoundError):
                    if os.stat(path).st_size > KEPT_BYTES:
                        os.unlink(path)
            self._free.put(slot)

    def remove(self) -> None:
        """Removes the files of all free slots."""
        with contextlib.suppress(queue.Empty):
            while True:
                slot = self._free.get_nowait()
                messages.remove(slot)
                messages.remove(f"{slot}.answer")


def run_python(step: Step, inputs: Arrays, deadline: float, slots: Slots) -> Arrays:
    """What a Python function returns, by tensor. Large tensors travel to its worker and back in shared memory."""
    with slots.taken() as (shared, answer):
        header = {"function": f"{step['python']}:{step['function']}", "answer": answer}
        try:
            call = messages.packed(header, inputs)
            if messages.size(call) > messages.INLINE_BYTES:
                call = messages.packed({"shared": shared, "bytes": messages.write_shared(shared, call)}, {})
            header, arrays = messages.unpacked(asked(step, call, deadline))
            if "bytes" in header:
                header, arrays = messages.unpacked(messages.read_shared(answer, most(header["bytes"])))
        except (OSError, messages.Broken) as error:
            raise StepFailed(f"its tensors can't be handed over: {error}") from error
    if "error" in header:
        raise StepFailed(str(header["error"])[:1000])
    return arrays


def most(count: Any) -> int:
    """The size of an answer in bytes, as its worker reports it: checked first, because it decides what is allocated."""
    if not isinstance(count, int) or not 0 <= count <= messages.MOST_BYTES:
        raise messages.Broken(f"a message of {count} bytes, the limit is {messages.MOST_BYTES}")
    return count


def asked(step: Step, call: Sequence[messages.Buffer], deadline: float) -> NDArray[np.uint8]:
    """A worker's answer to a call, as a message."""
    limits = np.array([step["timeout_s"] or math.inf, deadline], np.float64)
    tensors = {"call": np.frombuffer(b"".join(call), np.uint8), "limits": limits}
    response = executed(step["pool"], step["version"], tensors, ["answer"])
    return pb_utils.get_output_tensor_by_name(response, "answer").as_numpy()
