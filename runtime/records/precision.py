"""The precisions of a model, and how each one scores."""

import math
from typing import Annotated, Literal

from pydantic import Field

from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.base import Record, volatile

Precision = Literal["fp32", "fp16", "bf16", "int8", "fp8"]
GraphEngine = Literal["onnxruntime", "openvino", "onnxruntime-tensorrt", "tensorrt", "pytorch"]
Engine = GraphEngine | Literal["python"]  # a Python model's own code computes
Metric = Literal[
    "accuracy", "f1", "roc_auc", "log_loss", "mae", "rmse", "r2", "mape", "cosine", "recall_at_10"
]  # fmt: skip


class Scale(Record):
    """The range of a task metric, and whether a larger score is better (1) or a smaller one (-1)."""

    better: Literal[1, -1]
    lowest: float
    highest: float


_SHARE = Scale(better=1, lowest=0, highest=1)
_LOSS = Scale(better=-1, lowest=0, highest=math.inf)
SCALES: dict[Metric, Scale] = {
    "accuracy": _SHARE, "f1": _SHARE, "roc_auc": _SHARE, "recall_at_10": _SHARE,
    "cosine": Scale(better=1, lowest=-1, highest=1), "r2": Scale(better=1, lowest=-math.inf, highest=1),
    "log_loss": _LOSS, "mae": _LOSS, "rmse": _LOSS, "mape": _LOSS,
}  # fmt: skip


ENGINE_NAMES: dict[Engine, str] = {
    "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "onnxruntime-tensorrt": "TensorRT in ONNX Runtime",
    "tensorrt": "TensorRT", "pytorch": "PyTorch", "python": "Python",
}  # fmt: skip


class Variant(Record):
    """What a model is computed in, and what computes it: the same precision differs in speed and answers by engine."""

    engine: Engine = "onnxruntime"
    precision: Precision

    @property
    def variant(self) -> str:
        """Both in one word, for keys and names."""
        return f"{self.engine}-{self.precision}"

    @property
    def described(self) -> str:
        """Both for people; a Python model computes in whatever its code does."""
        if self.engine == "python":
            return ENGINE_NAMES[self.engine]
        return f"{self.precision} on {ENGINE_NAMES[self.engine]}"


class Slice(Record):
    """The task metric and its standard error on a slice of the validation set, such as `label=3`."""

    name: str
    score: float
    error: float
    samples: int


class Evaluation(Record):
    """How a model does on the validation set: the task metric overall and per slice (None: nothing to score).

    `relative_error` is the L2 norm of the difference between its outputs and fp32's, over the norm of fp32's, on a few
    samples. `problem` says why its outputs can't be scored.
    """

    score: float | None = None
    score_error: float | None = None
    samples: int = 0
    slices: tuple[Slice, ...] = ()
    relative_error: float | None = None
    problem: str = ""


class Candidate(Variant):
    """One precision of the model on one engine; `dropped` says why it is no longer considered (empty: it is).

    `method` says how it was built, `float_layers` which layers stayed in float. Without a `model` it could not be
    built. `score` is the task metric on the validation set (None: no data), `score_error` its standard error.
    `latency_ms` is the median time for a batch of `latency_batch` samples, in process, on one thread; `memory_mb` is
    what its session uses; `build_seconds` and `build_peak_mb` are what building it took, beyond Python, libraries and
    samples.
    """

    method: str = ""
    float_layers: tuple[str, ...] = ()
    model: Artifact | None
    score: float | None = None
    score_error: float | None = None
    samples: int = 0
    slices: tuple[Slice, ...] = ()
    relative_error: float | None = None
    memory_mb: float = volatile(0.0)
    build_seconds: float = volatile(0.0)
    build_peak_mb: float = volatile(0.0)
    latency_ms: float = volatile(0.0)
    latency_batch: int = volatile(1)
    size_bytes: int = 0
    dropped: str = ""


class Candidates(Record):
    """Every precision built for a target, on each of its engines; those still considered come best first."""

    target: str
    metric: Metric | None
    validation: str = ""
    candidates: tuple[Candidate, ...]
    notes: tuple[str, ...] = ()

    @property
    def kept(self) -> tuple[Candidate, ...]:
        """The candidates still considered."""
        return tuple(candidate for candidate in self.candidates if not candidate.dropped)


AS_EXPORTED = "as-exported"  # the folder of a candidate whose model is the exported one, unchanged


class Built(Candidate):
    """A candidate as the sandbox built it: its model is in `folder`, relative to the sandbox's work folder.

    Without a `folder` it could not be built.
    """

    model: None = None
    folder: Annotated[str, Field(pattern=r"^([a-z0-9-]+(/[a-z0-9-]+)*)?$", max_length=200)] = ""


class Ladder(Record):
    """What the sandbox built for a target: every precision, in the order of `Candidates`."""

    metric: Metric | None
    candidates: tuple[Built, ...]
    notes: tuple[str, ...] = ()
