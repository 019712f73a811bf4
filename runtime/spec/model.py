"""The spec's sections on the model itself: admission, conversion, data, quantization, quality."""

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from shiplift.runtime.records.precision import JudgeBy, Metric, MetricFile
from shiplift.runtime.spec.fields import Confidence, NotNegative, Positive, RelativePath, Section, finite, form
from shiplift.runtime.spec.images import Pixels

Postprocess = Literal["softmax", "sigmoid", "argmax", "top_k"]
NEWEST_OPSET = 23  # the newest opset to export with
Method = Literal["minmax", "entropy", "percentile"]


class Admission(Section):
    """What may be admitted. Pickles that carry code are refused, or loaded in the sandbox with `pickle: sandbox`.

    Python by the model's author is treated the same way: with `python: sandbox` it runs in the sandbox. This applies to
    a metric and to a Python model (`mlflow.pyfunc.log_model(python_model=...)`), when its answers are recorded and when
    it serves.
    """

    pickle: Literal["refuse", "sandbox"] = "refuse"
    python: Literal["refuse", "sandbox"] = "refuse"
    max_size_mb: Positive = 8192


class Conversion(Section):
    """How the model becomes ONNX. `outputs` keeps only the named outputs; `postprocess` is appended to the graph.

    `torchscript` also stores the model as TorchScript, traced with the same `postprocess`, for targets with
    `engine: pytorch`. That form has all of the model's outputs, so it excludes `outputs`. With `preprocess`, a model
    whose one input is a batch of images takes JPEG and PNG files instead. `max_megapixels` is the largest image that a
    model of images decodes.

    With `fallback: auto`, a model that has no right graph (control flow that depends on data, no converter, another
    answer) is served as it was logged, by its own library: `mlflow.pyfunc` in the sandbox, and no faster than that. A
    model that is data alone (skops, boosters' own files, pt2, Keras) needs nothing else; pickles need `admission:
    {python: sandbox}`. Where that is impossible, the version is refused. With `python`, it has to be possible. Models
    logged as ONNX, and those that take text or images, have no such fallback.

    With `inputs: signature`, clients send what the signature says: a model that computes in FP64 on columns of `double`
    or `long` has to be right wherever FP64 tells values apart. With `float32`, they send only values that FP32 holds
    in columns of `double`, as an author may know of clients in FP32, and the model only has to be right about those.
    """

    opset: int = Field(20, ge=17, le=NEWEST_OPSET)
    torchscript: bool = False
    postprocess: tuple[Postprocess, ...] = ()
    top_k: int = Field(5, ge=1, le=100_000)
    outputs: tuple[str, ...] = ()
    preprocess: Pixels | None = None
    max_megapixels: int = Field(32, ge=1, le=1000)
    fallback: Literal["auto", "none", "python"] = "auto"
    inputs: Literal["signature", "float32"] = "signature"
    memory_mb: int = Field(4096, ge=512, le=4_194_304)
    timeout_s: int = Field(300, ge=5, le=86400)

    @field_validator("postprocess", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.torchscript and self.outputs:
            raise ValueError("`torchscript` keeps all of the model's outputs: leave out `outputs`")
        if self.torchscript and self.preprocess:
            raise ValueError("`torchscript` is for targets that decode no images: leave out `preprocess`")
        return self


class OwnMetric(Section):
    """The author's own metric: a file logged beside the spec (`shiplift/FILE`) with `def score(labels, predictions)`.

    It returns a number; `better` says whether larger or smaller numbers are better. Its arguments are the labels and
    the output as NumPy arrays, or a dictionary of the outputs if there are several. It runs in the sandbox, so it needs
    `admission: {python: sandbox}`. It gives slices no score.
    """

    python: MetricFile
    better: Literal["larger", "smaller"] = "larger"

    def __str__(self) -> str:
        return self.python


MetricOrOwn = Annotated[Annotated[OwnMetric, Tag("in full")] | Annotated[Metric, Tag("by name")], Discriminator(form)]


class Data(Section):
    """The data logged with the version's run or model, and how predictions are scored on them.

    `validation` and `calibration` are artifact paths (NPZ, CSV or Parquet); `label` is the array or column with the
    expected answers. `metric` is a known metric, or the author's own. `slices` names more arrays or columns of the
    validation data; scores are split by their values. Without `calibration`, int8 is calibrated on some of the
    validation inputs. A model that takes images is also scored on these as JPEG files of each of `jpeg_qualities`.
    """

    validation: RelativePath = "shiplift/validation.npz"
    calibration: RelativePath = "shiplift/calibration.npz"
    label: str = "label"
    slices: tuple[str, ...] = ()
    metric: MetricOrOwn = "accuracy"
    min_samples: int = Field(100, ge=1)
    jpeg_qualities: tuple[Annotated[int, Field(ge=1, le=100)], ...] = Field((), max_length=10)
    calibration_samples: int = Field(256, ge=2)


class Quantization(Section):
    """How lower precisions are built, and how much of the task metric they may lose against fp32.

    `max_score_drop` and `max_slice_drop` are in the metric's own unit. Left out, they are 0.01 and 0.05 of a range from
    0 to 1, or of what a constant prediction scores by an error or a loss (mae, rmse, mape, log_loss).
    Each of `methods` is tried to calibrate INT8; the one closest to fp32 is used. If it loses too much, layers are left
    in float, the most sensitive first, until it is within the budget: at most `max_float_share` of them. A slice is a
    class, or a value of one of `data.slices`; slices with fewer than `min_slice_samples` samples are ignored. A loss
    within the budget passes. A loss whose whole interval (of `confidence_percent`) is beyond it fails. In between, the
    samples decide nothing: the precision is dropped, and says how many more samples would decide. With `judge_by:
    interval` the whole interval has to be within the budget. `max_error` is the largest L2 error of the outputs,
    relative to fp32's. `memory_mb` and `timeout_s` limit the sandboxed processes that build and score the precisions,
    and those that answer golden requests.
    """

    methods: tuple[Method, ...] = Field(("minmax", "percentile", "entropy"), min_length=1)
    percentile: float = Field(99.999, gt=50, le=100)
    per_channel: bool = True
    max_score_drop: NotNegative | None = None
    max_slice_drop: NotNegative | None = None
    confidence_percent: Confidence = 95
    judge_by: JudgeBy = "score"
    min_slice_samples: int = Field(30, ge=1)
    max_float_share: float = Field(0.5, ge=0, le=1)
    max_error: NotNegative = 1.0
    memory_mb: int = Field(16384, ge=512, le=4_194_304, json_schema_extra={"volatile": True})
    timeout_s: int = Field(3600, ge=5, le=86400, json_schema_extra={"volatile": True})

    @property
    def score_drop(self) -> float:
        """How much of the metric may be lost; where that is not set, of one from 0 to 1."""
        return 0.01 if self.max_score_drop is None else self.max_score_drop

    @property
    def slice_drop(self) -> float:
        """The same in one slice."""
        return 0.05 if self.max_slice_drop is None else self.max_slice_drop


class Parity(Section):
    """The largest allowed difference between the outputs of the original and the exported model.

    An output passes if its largest difference is within `max_abs`, or within `max_rel` of its largest value.
    """

    max_abs: NotNegative = 1e-3
    max_rel: NotNegative = 1e-2


class Quality(Section):
    """The quality that the model must have. `min_score` is the lowest allowed metric (the highest for a loss or error).

    `max_jpeg_drop` is how much of the metric each of `data.jpeg_qualities` may cost against the original images.

    A score has an interval of `confidence_percent`. A score within the limit passes. A score whose whole interval is
    beyond it fails. In between, the samples decide nothing, and the check says how many more would. With `judge_by:
    interval` a pass needs the whole interval within the limit. Both also hold for `slo.regression.score` and for rules
    on scores.
    """

    parity: Parity = Parity()
    min_score: float | None = None
    max_jpeg_drop: NotNegative = 0.01
    confidence_percent: Confidence = 95
    judge_by: JudgeBy = "score"

    @field_validator("min_score")
    @classmethod
    def _number(cls, value: float | None) -> float | None:
        return value if value is None else finite(value)
