"""A logged model's contract: MLflow's `MLmodel` file, signature and input example, as our own records.

Reads only YAML and JSON, never the model itself: this runs outside the sandbox.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml
from numpy.typing import NDArray

from shiplift.runtime.base.errors import NotAdmitted
from shiplift.runtime.model.tensors import Arrays, as_input, datatype, fits, numpy_type
from shiplift.runtime.records.tensor import Signature, TensorSpec

Flavor = Literal["pytorch", "sklearn", "lightgbm", "xgboost", "tensorflow", "keras", "onnx"]
FLAVORS: tuple[Flavor, ...] = ("onnx", "pytorch", "sklearn", "lightgbm", "xgboost", "tensorflow", "keras")
_COLUMN_TYPES = {
    "boolean": "BOOL",
    "integer": "INT32",
    "long": "INT64",
    "float": "FP32",
    "double": "FP64",
    "string": "BYTES",
}
_ADVICE = (
    "Log it with `mlflow.{flavor}.log_model(model, name=..., signature=infer_signature(x, y), input_example=x)` "
    "and register that."
)


@dataclass(frozen=True, kw_only=True)
class LoggedModel:
    """An MLflow model's flavor, signature and input example. `tabular`: the inputs are columns of a data frame."""

    flavor: Flavor
    signature: Signature
    example: Arrays
    tabular: bool


def read_model(folder: Path) -> LoggedModel:
    """The contract of the MLflow model in `folder`.

    Raises:
        NotAdmitted: there is no `MLmodel` file, no known flavor, no signature or no usable input example.
    """
    meta = _metadata(folder)
    with _readable("the MLmodel file can't be read", "Log the model again."):
        flavor = _flavor(meta)
    advice = _ADVICE.format(flavor=flavor)
    if not meta.get("signature"):
        raise NotAdmitted("the version has no signature", do=advice)
    with _readable("the version's signature can't be read", advice):
        inputs, tabular = _specs(meta["signature"].get("inputs"), "input")
        outputs, _ = _specs(meta["signature"].get("outputs"), "output")
    if not inputs or not outputs:
        raise NotAdmitted("the version's signature does not name both inputs and outputs", do=advice)
    with _readable("the input example does not match the signature", advice):
        example = _example(folder, meta, inputs, tabular=tabular, advice=advice)
    return LoggedModel(
        flavor=flavor, signature=Signature(inputs=inputs, outputs=outputs), example=example, tabular=tabular
    )


@contextmanager
def _readable(problem: str, do: str) -> Iterator[None]:
    """Turns whatever a malformed file raises into `NotAdmitted`: the author wrote it, so it is no bug of ours."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise NotAdmitted(f"{problem}: {' '.join(repr(error).split())[:300]}", do=do) from error


def _metadata(folder: Path) -> dict[str, Any]:
    file = folder / "MLmodel"
    if not file.is_file():
        raise NotAdmitted(
            "the version is not an MLflow model: it has no MLmodel file", do=_ADVICE.format(flavor="pytorch")
        )
    try:
        meta = yaml.safe_load(file.read_text())
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise NotAdmitted(f"the MLmodel file can't be read: {error}", do="Log the model again.") from error
    if not isinstance(meta, dict):
        raise NotAdmitted("the MLmodel file is not a mapping", do="Log the model again.")
    return meta


def _flavor(meta: dict[str, Any]) -> Flavor:
    logged = set(meta.get("flavors") or {})
    for flavor in FLAVORS:
        if flavor in logged:
            return flavor
    raise NotAdmitted(
        f"the version's flavors are {', '.join(sorted(logged)) or 'none'}; known ones are {', '.join(FLAVORS)}",
        do="Log the model with one of these flavors.",
    )


def _specs(text: str | None, kind: str) -> tuple[tuple[TensorSpec, ...], bool]:
    """Tensor specs from a signature's JSON, and whether they are columns of a data frame."""
    entries = json.loads(text) if text else []
    tabular = any(entry.get("type") != "tensor" for entry in entries)
    specs = []
    for index, entry in enumerate(entries):
        name = entry.get("name") or (kind if len(entries) == 1 else f"{kind}_{index}")
        if entry.get("type") == "tensor":
            tensor_type = datatype(np.dtype(entry["tensor-spec"]["dtype"]))
            shape = tuple(entry["tensor-spec"]["shape"])
        else:
            tensor_type, shape = _COLUMN_TYPES.get(str(entry.get("type"))), (-1, 1)  # type: ignore[assignment]
        if tensor_type is None:
            raise NotAdmitted(
                f"{kind} {name!r} has type {entry.get('type')!r} {entry.get('tensor-spec', {}).get('dtype', '')}, "
                "which Triton can't carry",
                do="Use numbers, booleans or strings.",
            )
        specs.append(TensorSpec(name=name, datatype=tensor_type, shape=shape))
    return tuple(specs), tabular


def _example(
    folder: Path, meta: dict[str, Any], inputs: tuple[TensorSpec, ...], *, tabular: bool, advice: str
) -> Arrays:
    info = meta.get("saved_input_example_info") or {}
    file = folder / str(info.get("artifact_path", ""))
    if not info or not file.is_file() or file.parent != folder:
        raise NotAdmitted("the version has no input example", do=advice)
    body = json.loads(file.read_text())
    arrays = _arrays(body["inputs"] if info.get("example_params_path") else body, str(info.get("type")), inputs)
    example = {spec.name: as_input(arrays[spec.name], spec) for spec in inputs}
    for spec in inputs:
        _check_example(example[spec.name], spec, tabular=tabular, advice=advice)
    if len({len(array) for array in example.values()}) != 1:
        raise NotAdmitted("the input example's arrays have different batch sizes", do=advice)
    if not len(example[inputs[0].name]):
        raise NotAdmitted("the input example has no samples", do=advice)
    return example


def _arrays(body: Any, kind: str, inputs: tuple[TensorSpec, ...]) -> Arrays:
    if kind == "dataframe":
        columns = [str(column) for column in body["columns"]]
        return {
            name: np.array([row[index] for row in body["data"]], dtype=object).reshape(-1, 1)
            for index, name in enumerate(columns)
        }
    if isinstance(body, dict):
        inner = body.get("inputs", body)
        named: dict[str, Any] = inner if isinstance(inner, dict) else {inputs[0].name: inner}
        return {name: np.array(value) for name, value in named.items()}
    return {inputs[0].name: np.array(body, dtype=numpy_type(inputs[0].datatype))}


def _check_example(array: NDArray[Any], spec: TensorSpec, *, tabular: bool, advice: str) -> None:
    if not fits(array, spec):
        raise NotAdmitted(
            f"the input example's {spec.name!r} has shape {array.shape}, the signature says {spec.shape}", do=advice
        )
    if not tabular and (not spec.shape or spec.shape[0] != -1):
        raise NotAdmitted(
            f"input {spec.name!r} has the fixed shape {spec.shape}: requests are batched along the first dimension",
            do="Log a signature whose first dimension is -1 (`infer_signature` does).",
        )
    if spec.datatype in ("FP16", "FP32", "FP64") and not np.isfinite(array).all():
        raise NotAdmitted(f"the input example's {spec.name!r} holds NaN or infinity", do="Log an example without them.")
