"""Speed of the candidates, measured in alternation, so that noise affects all of them alike."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from shiplift.runtime.base.progress import progress
from shiplift.runtime.model import onnx_models, openvino_models, trees_models
from shiplift.runtime.model.tensors import Arrays, batch_of
from shiplift.runtime.precision import quantization
from shiplift.runtime.records.precision import Engine, Precision
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.records.trees import TreesForm

TIMED_BATCH = 8
_ROUNDS, _FEWEST_ROUNDS = 15, 3
_MIN_TIMING_S = 0.05  # per candidate, so that fast models get more rounds
_BATCH_S = 0.25  # of the slowest candidate: slow models are timed on fewer samples
_MOST_TIMING_S = 2.0  # of all candidates together; then the fewest rounds do, since tuning compares the kept ones


@dataclass(frozen=True, kw_only=True)
class TimedForest:
    """How a checkpoint of trees answers with the tensors of a signature."""

    form: TreesForm
    signature: Signature


@dataclass(frozen=True, kw_only=True)
class RunnableCandidate:
    """How to run a candidate: its file, engine and precision; `outputs` are the names of its outputs.

    `forest` is there for trees alone.
    """

    file: Path
    outputs: tuple[str, ...]
    engine: Engine = "onnxruntime"
    precision: Precision = "fp32"
    gpu: bool = False
    forest: TimedForest | None = None

    def session(self, *, threads: int = 1) -> Any:
        """A session that computes on `threads` cores.

        Raises:
            ExportFailed, QuantizeFailed: the engine can't run the model.
            MissingTool: this environment lacks the engine.
        """
        if self.engine == "openvino":
            return openvino_models.session(self.file, self.outputs, self.precision, threads=threads)
        if self.forest:
            return trees_models.session(self.file, self.forest.form, self.forest.signature, threads=threads)
        return onnx_models.session(self.file, gpu=self.gpu, threads=threads)


def measure(runs: Mapping[int, RunnableCandidate], inputs: Arrays) -> dict[int, dict[str, Any]]:
    """The measured fields of each candidate, by index: latency and size. Index 0 is fp32.

    What they use of memory is measured where they are served: a session alone has other threads and batches.
    """
    progress("timing the candidates in alternation")
    sessions = {index: run.session() for index, run in runs.items()}
    inputs = _timed(sessions[0], inputs)
    times = _time(sessions, inputs)
    return {
        index: {
            "latency_ms": times[index],
            "latency_batch": len(next(iter(inputs.values()))),
            "size_bytes": quantization.model_bytes(run.file),
        }
        for index, run in runs.items()
    }


def _timed(slowest: Any, inputs: Arrays) -> Arrays:
    """The inputs, or as many of them as the slowest session answers in `_BATCH_S`."""
    one = batch_of(inputs, 1)
    if onnx_models.takes_one_sample(slowest):
        return one
    onnx_models.answer(slowest, one)  # the first run allocates
    started = time.perf_counter()
    onnx_models.answer(slowest, one)
    affordable = int(_BATCH_S / max(time.perf_counter() - started, 1e-6))
    return batch_of(inputs, min(max(affordable, 2), len(next(iter(inputs.values())))))


def _time(sessions: Mapping[int, Any], inputs: Arrays) -> dict[int, float]:
    """The median of alternated runs, in ms per batch."""
    spent: dict[int, list[float]] = {index: [] for index in sessions}
    for running in sessions.values():  # the first runs allocate
        onnx_models.answer(running, inputs)
    started = time.perf_counter()
    while _goes_on(len(spent[0]), time.perf_counter() - started, len(sessions)):
        for index, running in sessions.items():
            before = time.perf_counter()
            onnx_models.answer(running, inputs)
            spent[index].append(time.perf_counter() - before)
    return {index: median(times) * 1000 for index, times in spent.items()}


def _goes_on(rounds: int, seconds: float, sessions: int) -> bool:
    if rounds < _FEWEST_ROUNDS:
        return True
    return seconds < _MOST_TIMING_S and (rounds < _ROUNDS or seconds < _MIN_TIMING_S * sessions)


def speedup(slow: RunnableCandidate, fast: RunnableCandidate, inputs: Arrays) -> float:
    """How many times as fast as `slow` `fast` is on a batch of inputs, both run in alternation."""
    sessions = {0: slow.session(), 1: fast.session()}
    times = _time(sessions, _timed(sessions[0], inputs))
    return times[0] / times[1]
