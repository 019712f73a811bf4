"""Sections on the model itself: admission, conversion, data, quantization, quality."""

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from shiplift.runtime.records.base import Record
from shiplift.runtime.records.precision import Metric
from shiplift.runtime.spec.fields import NotNegative, Positive, RelativePath, finite

Postprocess = Literal["softmax", "sigmoid", "argmax", "top_k"]
NEWEST_OPSET = 23  # that models are exported with
Method = Literal["minmax", "entropy", "percentile"]


class Admission(Record):
    """What may be admitted. Pickles that carry code are refused unless `pickle: sandbox` says to load them there."""

    pickle: Literal["refuse", "sandbox"] = "refuse"
    max_size_mb: Positive = 8192


class Conversion(Record):
    """How the model becomes ONNX. `outputs` keeps only the named outputs; `postprocess` is appended to the graph.

    `torchscript` also keeps it as TorchScript, for targets with `engine: pytorch`: whole, so it excludes both.
    """

    opset: int = Field(20, ge=17, le=NEWEST_OPSET)
    torchscript: bool = False
    postprocess: tuple[Postprocess, ...] = ()
    top_k: int = Field(5, ge=1, le=100_000)
    outputs: tuple[str, ...] = ()
    memory_mb: int = Field(4096, ge=512, le=4_194_304)
    timeout_s: int = Field(300, ge=5, le=86400)

    @field_validator("postprocess", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.torchscript and (self.postprocess or self.outputs):
            raise ValueError("`torchscript` keeps the model whole: leave out `postprocess` and `outputs`")
        return self


class Data(Record):
    """The data logged with the version's run or model, and how predictions are scored on them.

    `validation` and `calibration` are artifact paths (NPZ, CSV or Parquet); `label` is the array or column with the
    expected answers. `slices` are further arrays or columns of the validation data, by whose values scores are split.
    Without `calibration`, int8 is calibrated on a part of the validation inputs.
    """

    validation: RelativePath = "shiplift/validation.npz"
    calibration: RelativePath = "shiplift/calibration.npz"
    label: str = "label"
    slices: tuple[str, ...] = ()
    metric: Metric = "accuracy"
    min_samples: int = Field(100, ge=1)
    calibration_samples: int = Field(256, ge=2)


class Quantization(Record):
    """How lower precisions are built, and what they may cost of the task metric against fp32 (in its own unit).

    `methods` are the ways to calibrate INT8 that are tried; the one closest to fp32 is used. Where it costs too much,
    layers are left in float, the most sensitive first, until it is within the budget: at most `max_float_share` of
    them. A slice is a class, or a value of one of `data.slices`; one with fewer than `min_slice_samples` decides
    nothing. `max_error` is the largest L2 error of the outputs, relative to fp32's.
    """

    methods: tuple[Method, ...] = Field(("minmax", "percentile", "entropy"), min_length=1)
    percentile: float = Field(99.999, gt=50, le=100)
    per_channel: bool = True
    max_score_drop: NotNegative = 0.01
    max_slice_drop: NotNegative = 0.05
    min_slice_samples: int = Field(30, ge=1)
    max_float_share: float = Field(0.5, ge=0, le=1)
    max_error: NotNegative = 1.0


class Parity(Record):
    """The largest difference allowed between the original's and the exported model's outputs.

    An output passes when its largest difference is within `max_abs`, or within `max_rel` of its largest value.
    """

    max_abs: NotNegative = 1e-3
    max_rel: NotNegative = 1e-2


class Quality(Record):
    """What the model itself must keep. `min_score` is the least (for mae: the largest) task metric allowed."""

    parity: Parity = Parity()
    min_score: float | None = None

    @field_validator("min_score")
    @classmethod
    def _number(cls, value: float | None) -> float | None:
        return value if value is None else finite(value)
