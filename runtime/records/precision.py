"""The precisions of a model, and how each one scores."""

import math
from typing import Annotated, Literal

from pydantic import Field

from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.base import Record, volatile

AllowedPrecision = Literal["fp32", "fp16", "bf16", "int8", "fp8"]  # what a target may allow
Precision = Literal["fp64"] | AllowedPrecision  # fp64: served wherever fp32 may be, of a model that is wrong in fp32
GraphEngine = Literal["onnxruntime", "openvino", "onnxruntime-tensorrt", "tensorrt", "pytorch", "trees"]
TextEngine = Literal["vllm", "tensorrt-llm"]  # they continue texts on a GPU, from the model's own weights
TEXT_ENGINES: tuple[TextEngine, ...] = ("vllm", "tensorrt-llm")
Engine = GraphEngine | TextEngine | Literal["python"]  # `python`: the model's own code computes
Metric = Literal[
    "accuracy",
    "f1",
    "exact_match",
    "roc_auc",
    "log_loss",
    "mae",
    "rmse",
    "r2",
    "mape",
    "cosine",
    "recall_at_10",
    "ndcg_at_10",
    "mean_iou",
    "map",
    "wer",
    "cer",
]
JudgeBy = Literal["score", "interval"]  # what has to be within a limit: the score alone, or its whole interval


class Scale(Record):
    """The range of a task metric and its unit, and whether a larger score is better (1) or a smaller one (-1).

    `counted`: a sample is right or wrong, so that a set of samples without an error still leaves room for one.
    """

    better: Literal[1, -1]
    lowest: float
    highest: float
    unit: str
    counted: bool = False


MetricFile = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_-]{0,99}\.py$")]


class AuthorMetric(Record):
    """A metric by the model's author: a Python file, logged beside the spec, with `def score(labels, predictions)`.

    `better` says which scores are better. `sha256` is the file's digest: scores of different files can't be compared.
    """

    python: MetricFile
    better: Literal["larger", "smaller"] = "larger"
    sha256: str = ""

    def __str__(self) -> str:
        return self.python


TaskMetricName = Metric | AuthorMetric


def _share(unit: str, *, counted: bool = False) -> Scale:
    return Scale(better=1, lowest=0, highest=1, unit=unit, counted=counted)


def _loss(unit: str) -> Scale:
    return Scale(better=-1, lowest=0, highest=math.inf, unit=unit)


SCALES: dict[Metric, Scale] = {
    "accuracy": _share("of the samples", counted=True),
    "f1": _share("mean F1 of the classes", counted=True),
    "exact_match": _share("of the samples", counted=True),
    "roc_auc": _share("area under the curve"),
    "log_loss": _loss("nats per sample"),
    "mae": _loss("the label's unit"),
    "rmse": _loss("the label's unit"),
    "r2": Scale(better=1, lowest=-math.inf, highest=1, unit="of the variance"),
    "mape": _loss("of the label: 0.1 is 10 %"),
    "cosine": Scale(better=1, lowest=-1, highest=1, unit="cosine"),
    "recall_at_10": _share("of the ten nearest neighbours"),
    "ndcg_at_10": _share("of the best order's gain"),
    "mean_iou": _share("of the union, mean of the classes"),
    "map": _share("mean average precision"),
    "wer": _loss("edits per word"),
    "cer": _loss("edits per character"),
}


def scale_of(metric: TaskMetricName) -> Scale:
    """A metric's scale. An author's metric may be any number."""
    if not isinstance(metric, AuthorMetric):
        return SCALES[metric]
    better: Literal[1, -1] = 1 if metric.better == "larger" else -1
    return Scale(better=better, lowest=-math.inf, highest=math.inf, unit=f"by {metric.python}")


ENGINE_NAMES: dict[Engine, str] = {
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "onnxruntime-tensorrt": "TensorRT in ONNX Runtime",
    "tensorrt": "TensorRT",
    "trees": "treelite",
    "pytorch": "PyTorch",
    "python": "Python",
    "vllm": "vLLM",
    "tensorrt-llm": "TensorRT-LLM",
}


class Variant(Record):
    """A model's precision and engine: the same precision differs in speed and answers between engines."""

    engine: Engine = "onnxruntime"
    precision: Precision

    @property
    def variant(self) -> str:
        """Both in one word, for keys and names."""
        return f"{self.engine}-{self.precision}"

    @property
    def described(self) -> str:
        """Both for people. The code of a Python model decides its precision itself."""
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
    """A model's results on the validation set: the task metric overall and per slice (None: nothing to score).

    `resamples` are the scores of bootstrap resamples of the set. They are the same for all models that are scored on
    it, so their differences are paired. `relative_error` is the L2 norm of the difference between its outputs and
    fp32's, over the norm of fp32's, on a few samples. `problem` says why its outputs can't be scored.
    """

    score: float | None = None
    score_error: float | None = None
    resamples: tuple[float, ...] = ()
    samples: int = 0
    slices: tuple[Slice, ...] = ()
    relative_error: float | None = None
    problem: str = ""


class Candidate(Variant):
    """One precision of the model on one engine. `dropped` says why it is no longer considered (empty: it is).

    `method` says how it was built, `float_layers` which layers stayed in float. Without a `model`, it could not be
    built. `score` is the task metric on the validation set (None: no data), `score_error` its standard error, and
    `resamples` are the scores of bootstrap resamples (empty for dropped candidates). `latency_ms` is the median time
    for a batch of `latency_batch` samples, in process, on one thread. `memory_mb` is what its session used
    in releases of 0.1, which nothing ever read: since then, only servers' memory is measured. `build_seconds` and
    `build_peak_mb` are the cost of building it, beyond Python, libraries and samples.
    """

    method: str = ""
    float_layers: tuple[str, ...] = ()
    model: Artifact | None
    score: float | None = None
    score_error: float | None = None
    resamples: tuple[float, ...] = ()
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

    @property
    def evaluation(self) -> Evaluation:
        """Its results on the validation set."""
        return Evaluation(
            score=self.score,
            score_error=self.score_error,
            resamples=self.resamples,
            samples=self.samples,
            slices=self.slices,
            relative_error=self.relative_error,
        )


class JpegScore(Record):
    """The task metric on validation images as JPEG files of one quality (None: on the original images).

    `image_bytes` is an image's average size: its file, or without a quality its pixels, one byte for each channel.
    """

    quality: int | None = None  # a revision's package has no nulls
    score: float | None = None
    resamples: tuple[float, ...] = ()
    samples: int
    image_bytes: float


class Candidates(Record):
    """Every precision built for a target, on each of its engines. Those still considered come first, best first.

    `jpegs` are scores of fp32: on the original images, then on each quality. `constant_score` is what a constant
    prediction scores by an error or a loss, and 1 for other metrics.
    """

    target: str
    metric: TaskMetricName | None
    constant_score: float = 1.0
    validation: str = ""
    candidates: tuple[Candidate, ...]
    jpegs: tuple[JpegScore, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def kept(self) -> tuple[Candidate, ...]:
        """The candidates still considered."""
        return tuple(candidate for candidate in self.candidates if not candidate.dropped)


AS_EXPORTED = "as-exported"  # the folder of a candidate whose model is the exported one, unchanged


class Built(Candidate):
    """A candidate as the sandbox built it: its model is in `folder`, relative to the sandbox's work folder.

    Without a `folder`, it could not be built.
    """

    model: None = None
    folder: Annotated[str, Field(pattern=r"^([a-z0-9-]+(/[a-z0-9-]+)*)?$", max_length=200)] = ""


class Ladder(Record):
    """What the sandbox built for a target: every precision, in the order of `Candidates`."""

    metric: TaskMetricName | None
    constant_score: float = 1.0
    candidates: tuple[Built, ...]
    jpegs: tuple[JpegScore, ...] = ()
    notes: tuple[str, ...] = ()
