"""The inputs of a served model as MLflow's clients name them, and the tensors that they become."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shiplift.runtime.records.scoring import ParamsUse, Scoring
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.serving.discovery import ServedModel

TENSOR = "tensor"
_COLUMNS = {
    "BOOL": "boolean",
    "INT32": "integer",
    "INT64": "long",
    "FP32": "float",
    "FP64": "double",
    "BYTES": "string",
}


@dataclass(frozen=True, kw_only=True)
class Field:
    """An input: its `name` for clients (empty: none), MLflow's type, and the served tensor.

    `dtype` and `shape` are those of a tensor. Only a column can be left out, if it is not `required`.
    """

    name: str
    kind: str
    spec: TensorSpec
    dtype: str = ""
    shape: tuple[int, ...] = ()
    required: bool = True

    @property
    def label(self) -> str:
        """How an error names it."""
        return repr(self.name or self.spec.name)


@dataclass(frozen=True, kw_only=True)
class InputSchema:
    """The inputs in their logged order. `inputs` and `params` are MLflow's JSON for them.

    `params_use` and `hinted` are as in `Scoring`.
    """

    fields: tuple[Field, ...]
    inputs: str
    params: str
    params_use: ParamsUse
    hinted: bool = False

    @property
    def tensors(self) -> bool:
        """Whether they are tensors, rather than the columns of a data frame."""
        return self.fields[0].kind == TENSOR

    @property
    def named(self) -> bool:
        """Whether clients name them."""
        return bool(self.fields[0].name)


def schema_of(served: ServedModel) -> InputSchema:
    """A served model's inputs; those of a model that was logged without a signature are made from its tensors."""
    return schema_from(served.scoring or derived(served.signature), served.signature)


def schema_from(scoring: Scoring, signature: Signature) -> InputSchema:
    """The inputs that `scoring` tells of, as the tensors of the signature."""
    try:
        fields = tuple(_fields(json.loads(scoring.inputs), signature))
    except (AttributeError, KeyError, TypeError, ValueError):  # not the JSON that MLflow writes
        fields = ()
    if not fields:
        scoring = derived(signature)
        fields = tuple(_fields(json.loads(scoring.inputs), signature))
    return InputSchema(
        fields=fields,
        inputs=scoring.inputs,
        params=scoring.params,
        params_use=scoring.params_use,
        hinted=scoring.hinted,
    )


def derived(signature: Signature) -> Scoring:
    """A signature in MLflow's terms: columns if every input has one value a row, else tensors."""
    tabular = all(spec.shape[1:] == (1,) and spec.datatype in _COLUMNS for spec in signature.inputs)
    named = len(signature.inputs) > 1
    entries = [
        {
            **(_column(spec) if tabular else _tensor(spec)),
            **({"name": spec.name} if named else {}),
        }
        for spec in signature.inputs
    ]
    return Scoring(inputs=json.dumps(entries))


def _column(spec: TensorSpec) -> dict[str, Any]:
    return {"type": _COLUMNS[spec.datatype], "required": not spec.optional}


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"type": TENSOR, "tensor-spec": {"dtype": numpy_name(spec.datatype), "shape": [-1, *spec.shape[1:]]}}


def numpy_name(datatype: str) -> str:
    """NumPy's name of a Triton datatype; texts are `str`."""
    if datatype in ("BYTES", "BOOL"):
        return {"BYTES": "str", "BOOL": "bool"}[datatype]
    return datatype.replace("FP", "float").lower()


def _fields(entries: Sequence[Mapping[str, Any]], signature: Signature) -> Sequence[Field]:
    """The fields of a logged schema. They have the served tensors' names, or their order.

    Optional columns that the example lacked are not served: they are left out.
    """
    by_name = {spec.name: spec for spec in signature.inputs}
    entries = [each for each in entries if each.get("required", True) or str(each.get("name")) in by_name]
    names = [str(entry.get("name") or "") for entry in entries]
    if len(entries) == len(signature.inputs) and not set(names) <= set(by_name):
        specs = list(signature.inputs)
    else:
        specs = [by_name[name] for name in names]
    return [_field(entry, name, spec) for entry, name, spec in zip(entries, names, specs, strict=True)]


def _field(entry: Mapping[str, Any], name: str, spec: TensorSpec) -> Field:
    if entry["type"] != TENSOR:
        return Field(name=name, kind=str(entry["type"]), spec=spec, required=bool(entry.get("required", True)))
    tensor = entry["tensor-spec"]
    shape = tuple(int(size) for size in tensor["shape"])
    return Field(name=name, kind=TENSOR, spec=spec, dtype=str(tensor["dtype"]), shape=shape)
