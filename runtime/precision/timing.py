"""Speed and memory of the candidates, measured in alternation, so that noise affects all of them alike."""

import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from shiplift.runtime.base.progress import progress
from shiplift.runtime.model import onnx_models, openvino_models, trees_models
from shiplift.runtime.model.tensors import Arrays, batch_of, dump_npz
from shiplift.runtime.precision import quantization
from shiplift.runtime.records.precision import Engine, Precision
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.records.trees import TreesForm

TIMED_BATCH = 8
_LARGE_BYTES = 256 << 20  # a model this large is measured alone, because two at a time need too much memory
_FOOTPRINT = Path(__file__).with_name("footprint.py")
_ROUNDS, _FEWEST_ROUNDS = 15, 3
_MIN_TIMING_S = 0.05  # per candidate, so that fast models get more rounds
_BATCH_S = 0.25  # of the slowest candidate: slow models are timed on fewer samples
_MOST_TIMING_S = 2.0  # of all candidates together; then the fewest rounds do, since tuning compares the kept ones


@dataclass(frozen=True, kw_only=True)
class Forest:
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
    forest: Forest | None = None

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

    @property
    def hint(self) -> tuple[str, ...]:
        """The precision for OpenVINO, or `trees` for treelite; empty if ONNX Runtime runs it."""
        if self.engine == "trees":
            return (self.engine,)
        return (openvino_models.HINTS[self.precision],) if self.engine == "openvino" else ()


def measure(runs: Mapping[int, RunnableCandidate], inputs: Arrays, folder: Path) -> dict[int, dict[str, Any]]:
    """The measured fields of each candidate, by index: latency, memory, size. Index 0 is fp32."""
    progress("timing the candidates in alternation")
    sessions = {index: run.session() for index, run in runs.items()}
    inputs = _timed(sessions[0], inputs)
    times = _time(sessions, inputs)
    del sessions
    progress("measuring the candidates' memory")
    example = folder / "example.npz"
    example.write_bytes(dump_npz(inputs))
    sizes = {index: quantization.model_bytes(run.file) for index, run in runs.items()}
    at_once = 2 if max(sizes.values()) < _LARGE_BYTES else 1  # this measures memory, not speed, so two may run together
    with ThreadPoolExecutor(at_once) as pool:
        footprints = dict(zip(runs, pool.map(lambda run: _footprint(run, example), runs.values()), strict=True))
    return {
        index: {
            "latency_ms": times[index],
            "latency_batch": len(next(iter(inputs.values()))),
            "size_bytes": sizes[index],
            "memory_mb": footprints[index],
        }
        for index in runs
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


def _footprint(run: RunnableCandidate, inputs: Path) -> float:
    """The memory of a session of the model, in MiB; 0 if it could not be measured."""
    completed = subprocess.run(
        [sys.executable, "-P", _FOOTPRINT, run.file, inputs, *run.hint], capture_output=True, text=True, check=False
    )
    return float(completed.stdout) if completed.returncode == 0 else 0.0
