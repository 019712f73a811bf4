"""A version on its way in: what was admitted, scanned and exported."""

from typing import Literal

from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.base import Record, volatile
from shiplift.runtime.records.tensor import Signature


class ModelVersion(Record):
    """An admitted version: its digest covers every file of the model; `run_id` is where its story is kept."""

    name: str
    version: int
    digest: str
    flavor: Literal["pytorch", "sklearn", "lightgbm", "xgboost", "tensorflow", "keras", "onnx"]
    files: Artifact
    run_id: str = volatile("")
    registered_at: float = volatile(0.0)


class Contract(Record):
    """What the author promised: the logged signature, and the input example as an NPZ of arrays by input name.

    `tabular`: the inputs are the columns of a data frame.
    """

    signature: Signature
    example: Artifact
    tabular: bool = False


class Datasets(Record):
    """The logged data, still as logged (NPZ, CSV or Parquet); None where nothing was logged."""

    validation: Artifact | None = None
    validation_name: str = ""
    calibration: Artifact | None = None
    calibration_name: str = ""


class RecordedRequests(Record):
    """Real requests logged for the load test, still as logged (NPZ or JSON); None where there are none."""

    file: Artifact | None = None
    name: str = ""


class Finding(Record):
    """One thing the scanner found in a model file."""

    severity: Literal["critical", "warning", "info"]
    file: str
    what: str
    names: str = ""


class Scan(Record):
    """What was scanned, by what, and what it found."""

    scanner: str
    files: int
    findings: tuple[Finding, ...] = ()
    seconds: float = volatile(0.0)


class Isolation(Record):
    """What the kernel let the sandbox have: a promise is only as good as the machine it ran on."""

    network: Literal["namespace", "landlock", "none"]
    files: Literal["landlock", "none"]
    calls: Literal["seccomp", "none"] = "none"
    memory_limit_mb: int
    timeout_s: int


class ParityCase(Record):
    """The largest differences between the original's and the ONNX model's outputs on one input set.

    `problem` says where there is nothing to compare: NaN, or another shape.
    """

    inputs: str
    batch: int
    max_abs: float
    max_rel: float
    problem: str = ""


class Exported(Record):
    """The ONNX model (a tree holding `model.onnx`), proven against the original.

    `reference` is an NPZ with the example inputs as `input/NAME` and the original's outputs as `output/NAME`.
    `torchscript` is the original itself (a tree holding `model.pt`), where the spec asks for it.
    """

    model: Artifact
    signature: Signature
    opset: int
    torchscript: Artifact | None = None
    parity: tuple[ParityCase, ...]
    reference: Artifact
    isolation: Isolation = volatile()
    notes: tuple[str, ...] = ()
