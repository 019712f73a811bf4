"""Served models as MLflow's clients know them: of columns, or of tensors."""

import json
from typing import Any

from shiplift.runtime.records.scoring import AnswerForm, ParamsUse, Scoring
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.serving.discovery import ServedModel

COLUMNS: dict[str, Any] = {
    "double": "FP64",
    "float": "FP32",
    "long": "INT64",
    "integer": "INT32",
    "boolean": "BOOL",
    "string": "BYTES",
    "datetime": "BYTES",
    "binary": "BYTES",
}
TENSORS: dict[str, Any] = {
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    "int8": "INT8",
    "uint8": "UINT8",
    "int32": "INT32",
    "int64": "INT64",
    "bool": "BOOL",
    "str": "BYTES",
}


def of_columns(kinds: dict[str, str], *, named: bool = True, **changes: Any) -> ServedModel:
    """A model of columns, with their kinds by name."""
    specs = tuple(TensorSpec(name=name, datatype=COLUMNS[kind], shape=(-1, 1)) for name, kind in kinds.items())
    entries = [{"type": kind, "required": True, **({"name": name} if named else {})} for name, kind in kinds.items()]
    return _served(specs, entries, **changes)


def of_tensors(
    dtype: str, *shape: int, names: tuple[str, ...] = ("x",), named: bool = False, **more: Any
) -> ServedModel:
    """A model of tensors of one kind."""
    specs = tuple(TensorSpec(name=name, datatype=TENSORS[dtype], shape=shape) for name in names)
    spec = {"type": "tensor", "tensor-spec": {"dtype": dtype, "shape": list(shape)}}
    return _served(specs, [{**spec, **({"name": name} if named else {})} for name in names], **more)


def _served(
    specs: tuple[TensorSpec, ...],
    entries: list[dict[str, Any]],
    *,
    outputs: tuple[TensorSpec, ...] = (TensorSpec(name="y", datatype="FP32", shape=(-1, 1)),),
    logged: Any = (),
    params: Any = (),
    answer: AnswerForm | None = None,
    params_use: ParamsUse = "defaults",
    **changes: Any,
) -> ServedModel:
    scoring = Scoring(
        inputs=json.dumps(entries),
        outputs=json.dumps(logged) if logged else "",
        params=json.dumps(params) if params else "",
        answer=answer,
        params_use=params_use,
    )
    fields: dict[str, Any] = {"model": "m", "name": "m", "version": 1, "grpc": "", "http": "", **changes}
    return ServedModel(signature=Signature(inputs=specs, outputs=outputs), scoring=scoring, **fields)
