"""The precisions of a model, and how each one scores."""

from typing import Literal

from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.base import Record, volatile

Precision = Literal["fp32", "fp16", "bf16", "int8", "fp8"]
Metric = Literal["accuracy", "f1", "mae", "cosine"]


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


class Candidate(Record):
    """One precision of the model on one target; `dropped` says why it is no longer considered (empty: it is).

    `method` says how it was built, `float_layers` which layers stayed in float. Without a `model` it could not be
    built. `score` is the task metric on the validation set (None: no data), `score_error` its standard error.
    `latency_ms` is the median time for a batch of `latency_batch` samples, in process, on one thread; `memory_mb` is
    what its session uses; `build_seconds` and `build_peak_mb` are what building it took, beyond Python, libraries and
    samples.
    """

    precision: Precision
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
    """Every precision built for a target; those still considered come best first."""

    target: str
    metric: Metric | None
    validation: str = ""
    candidates: tuple[Candidate, ...]
    notes: tuple[str, ...] = ()

    @property
    def kept(self) -> tuple[Candidate, ...]:
        """The candidates still considered."""
        return tuple(candidate for candidate in self.candidates if not candidate.dropped)
