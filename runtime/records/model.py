"""A model version on its way in: what was admitted, scanned and exported."""

import hashlib
import operator
from typing import Annotated, Literal

from pydantic import Field

from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.base import Record, volatile

# MLflow's flavors that are released. If a version has several, the first of these counts.
Flavor = Literal[
    "onnx",
    "pytorch",
    "sklearn",
    "lightgbm",
    "xgboost",
    "catboost",
    "tensorflow",
    "keras",
    "transformers",
    "sentence_transformers",
    "shiplift_pipeline",
    "shiplift_adopted",
    "python_function",
]
PYTHON: Flavor = "python_function"  # every version has this flavor; it counts only if there is no other
PIPELINE: Flavor = "shiplift_pipeline"  # a pipeline of models, as `shiplift pipeline release` logs it
ADOPTED: Flavor = "shiplift_adopted"  # a model of a Triton repository, as `shiplift adopt` logs it
_IN_WORDS: dict[Flavor, str] = {
    PYTHON: "mlflow.pyfunc",
    PIPELINE: "a pipeline of models (shiplift pipeline release)",
    ADOPTED: "a model of a Triton repository (shiplift adopt)",
}
# Flavors whose models can be served by their own code if they can't be exported as a graph. An ONNX model is the graph
# itself, and models that take text answer through our own front.
FALL_BACK: tuple[Flavor, ...] = (
    "pytorch",
    "sklearn",
    "lightgbm",
    "xgboost",
    "catboost",
    "tensorflow",
    "keras",
)
# `name[extra]==1.0,<2`, without any location to fetch a package from
Requirement = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9._,-]+\])?([=<>!~]{1,3}[A-Za-z0-9.*+!]+,?)*$", max_length=300
    ),
]


class ModelVersion(Record):
    """An admitted model version: `digest` covers every file of the model, `run_id` is the MLflow run that logged it.

    Its name and number can be used again after it was deleted: what identifies it is when it was registered, in seconds
    since the epoch (0: unknown), and its digest.
    """

    name: str
    version: int
    digest: str
    flavor: Flavor
    files: Artifact
    run_id: str = volatile("")
    registered_at: float = 0.0

    @property
    def logged_as(self) -> str:
        """How it was logged, for people: MLflow's module, or what of Shiplift registered it."""
        return _IN_WORDS.get(self.flavor, f"mlflow.{self.flavor}")


class Datasets(Record):
    """The datasets, exactly as logged (NPZ, CSV or Parquet); None for what was not logged.

    `metric` is the file of the author's own metric, if the spec names one.
    """

    validation: Artifact | None = None
    validation_name: str = ""
    calibration: Artifact | None = None
    calibration_name: str = ""
    metric: Artifact | None = None


class RecordedRequests(Record):
    """Real requests for the load test, exactly as logged (NPZ or JSON); None if none were logged."""

    file: Artifact | None = None
    name: str = ""


class Finding(Record):
    """A finding of the scanner in a model file."""

    severity: Literal["critical", "warning", "info"]
    file: str
    what: str
    names: str = ""


class Scan(Record):
    """The result of a scan: which scanner, how many files, and its findings."""

    scanner: str
    files: int
    findings: tuple[Finding, ...] = ()
    seconds: float = volatile(0.0)


class Obstacle(Record):
    """Why something can't be done, and what to do about it."""

    what: str
    do: str


class Isolation(Record):
    """The isolation that the sandbox had. `none` stands for a mechanism whose absence the site accepts.

    `mounts` and the network's `landlock` add to the protection of the others.
    """

    network: Literal["namespace", "seccomp", "landlock", "none"]
    processes: Literal["namespace", "none"] = "none"
    mounts: Literal["read-only", "none"] = "none"
    files: Literal["landlock", "none"]
    calls: Literal["seccomp", "none"] = "none"
    memory_limit_mb: int
    timeout_s: int


class ParityCase(Record):
    """The largest differences between the outputs of the original and of the ONNX model on one set of inputs.

    `problem` says why they can't be compared: NaN, or a different shape.
    """

    inputs: str
    batch: int
    max_abs: float
    max_rel: float
    problem: str = ""


class Wheel(Record):
    """A package of a Python model's environment, as the index has it."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    version: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.*+!_-]*$")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class PythonEnvironment(Record):
    """The contents of a Python model's environment: the version of Python, the machine, and every package."""

    python: str
    machine: str
    wheels: tuple[Wheel, ...]

    @property
    def lock(self) -> str:
        """The packages as requirements with hashes, from which pip installs exactly these."""
        return "".join(f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n" for wheel in self.wheels)

    @property
    def digest(self) -> str:
        """The name of the environment: equal environments are built once."""
        return hashlib.sha256(f"{self.python} {self.machine}\n{self.lock}".encode()).hexdigest()[:24]


class PythonModel(Record):
    """How a Python model runs: in this environment, in processes that may use `memory_mb` each.

    `layer` is the environment as a file, if it has to travel. `json_outputs` are served as JSON, since their values are
    of several types. `listed`: `predict` answers a list with an array for each output. `axes` are the outputs whose
    values lack the axis of rows, and how (`AnswerPart.axis`). `document`: the answer has one output, whatever it is.
    """

    environment: PythonEnvironment
    memory_mb: int
    layer: Artifact | None = None
    json_outputs: tuple[str, ...] = Field(default=(), exclude_if=operator.not_)
    listed: bool = Field(default=False, exclude_if=operator.not_)
    axes: dict[str, Literal["squeezed", "whole"]] = Field(default_factory=dict, exclude_if=operator.not_)
    document: bool = Field(default=False, exclude_if=operator.not_)

    @property
    def answers_as(self) -> dict[str, object]:
        """How its process makes outputs of an answer, as settings of `guest/python/pyfunc.py`."""
        return {
            "json": list(self.json_outputs),
            "listed": self.listed,
            "axes": dict(self.axes),
            "document": self.document,
        }
