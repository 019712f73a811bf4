"""Named columns in front of a model that was trained on a data frame: one input each, with the training categories.

A tree compares a category's code, which depends on the order of the categories in the training data. So the graph
contains the codes of the values, and clients send the values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import TensorProto, compose, helper

from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.guest.python.values import column
from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.records.tensor import TensorSpec

FEATURES = "features"  # the model's one input, before columns take its place
_INNER = "model/"
_LEARNING, _ENCODER_VERSION, _CAST_VERSION = "ai.onnx.ml", 3, 13
_TYPES = {datatype: number for number, datatype in onnx_models.DATATYPES.items()}


@dataclass(frozen=True, kw_only=True)
class FeatureColumns:
    """The columns of a data frame, in the order of the features.

    `categories` are the values of each categorical column in the order of their codes, as in training. Any other value
    has the code `unknown`. `none`: whether a missing text is None, or else NaN; None: what pandas makes of it.
    """

    specs: tuple[TensorSpec, ...]
    categories: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    unknown: float = -1.0
    none: bool | None = None

    def frame(self, inputs: Arrays) -> Any:
        """The inputs, (samples, 1) each, as a data frame with the categorical columns of training."""
        import pandas as pd  # noqa: PLC0415 - only for such models

        columns: dict[str, Any] = {}
        for spec in self.specs:
            values = inputs[spec.name].reshape(-1)
            known = self.categories.get(spec.name)
            if known is None:
                columns[spec.name] = column(values, "string", none=self.none)
            else:
                columns[spec.name] = pd.Categorical.from_codes(_codes(known, values), list(known))
        return pd.DataFrame(columns)

    def in_front_of(
        self, model: onnx.ModelProto, matrices: Mapping[str, tuple[TensorSpec, ...]] | None = None
    ) -> onnx.ModelProto:
        """The model with an input per column instead of its inputs, which are (samples, columns) of any type.

        `matrices` are the columns of each input; None: `FEATURES` has all of them.

        Raises:
            ExportFailed: a column has the name of an output.
        """
        outputs = {output.name for output in model.graph.output}
        if taken := sorted(outputs & {spec.name for spec in self.specs}):
            raise ExportFailed(
                f"the column {taken[0]!r} has the name of an output of the model",
                do="Rename the column before you train and log the model: `x = x.rename(columns={'NAME': 'NAME_in'})`.",
            )
        inner = _INNER
        while any(spec.name.startswith(inner) for spec in self.specs):
            inner = f"_{inner}"
        model = compose.add_prefix(model, inner, rename_outputs=False)
        graph, nodes = model.graph, list[onnx.NodeProto]()
        columns = matrices or {FEATURES: self.specs}
        for number, matrix in enumerate(graph.input):
            nodes += self._joined(matrix, columns[matrix.name.removeprefix(inner)], f"{inner}{number}/")
        del graph.input[:]
        graph.input.extend(helper.make_tensor_value_info(s.name, _TYPES[s.datatype], ["batch", 1]) for s in self.specs)
        own = list(graph.node)
        del graph.node[:]
        graph.node.extend([*nodes, *own])
        _declare_operators(model)
        return model

    def _joined(
        self, matrix: onnx.ValueInfoProto, columns: tuple[TensorSpec, ...], within: str
    ) -> list[onnx.NodeProto]:
        """The nodes that write an input of the model from columns; their tensors' names begin with `within`."""
        to = matrix.type.tensor_type.elem_type
        nodes = [node for spec in columns for node in self._read(spec, within + spec.name, to)]
        parts = [within + spec.name for spec in columns]
        return [*nodes, helper.make_node("Concat", parts, [matrix.name], axis=1)]

    def _read(self, spec: TensorSpec, part: str, to: int) -> list[onnx.NodeProto]:
        """The nodes that turn a column into `part`, which has the type `to`."""
        known = self.categories.get(spec.name)
        if known is None:
            same = _TYPES[spec.datatype] == to
            return [
                helper.make_node("Identity" if same else "Cast", [spec.name], [part], **({} if same else {"to": to}))
            ]
        read, name, keys = _keys(spec, known, part)
        codes = [float(code) for code in range(len(known))]
        encode = helper.make_node(
            "LabelEncoder",
            [name],
            [part],
            domain=_LEARNING,
            values_floats=codes,
            default_float=self.unknown,
            **keys,
        )
        return [*read, encode]


def _keys(spec: TensorSpec, known: Sequence[Any], part: str) -> tuple[list[onnx.NodeProto], str, dict[str, Any]]:
    """How to compare categories: the nodes before the comparison, its tensor, and LabelEncoder's keys."""
    if spec.datatype == "BYTES":
        return [], spec.name, {"keys_strings": [str(value) for value in known]}
    typed = f"{part}/typed"
    if any(isinstance(value, float) for value in known):
        cast = helper.make_node("Cast", [spec.name], [typed], to=TensorProto.FLOAT)
        return [cast], typed, {"keys_floats": [float(value) for value in known]}
    cast = helper.make_node("Cast", [spec.name], [typed], to=TensorProto.INT64)
    return [cast], typed, {"keys_int64s": [int(value) for value in known]}


def _declare_operators(model: onnx.ModelProto) -> None:
    """Declares opsets that have this LabelEncoder and Cast; onnxmltools declares the oldest that a tree needs."""
    versions = {entry.domain: entry.version for entry in model.opset_import}
    versions[_LEARNING] = max(versions.get(_LEARNING, 1), _ENCODER_VERSION)
    versions[""] = max(versions.get("", 1), _CAST_VERSION)
    del model.opset_import[:]
    model.opset_import.extend(helper.make_opsetid(domain, version) for domain, version in versions.items())


def _codes(known: Sequence[Any], values: NDArray[Any]) -> list[int]:
    """Each value's position among the categories, -1 for other values; text may stand for a number."""
    as_text = values.dtype.kind in "OSU"
    codes = {str(value) if as_text else value: code for code, value in enumerate(known)}
    return [codes.get(str(value) if as_text else value, -1) for value in values.tolist()]
