"""The columns of a data frame as the tensors that skl2onnx wants: one for each set that is a matrix to a transformer.

An estimator takes all columns as one matrix, unless it begins with a ColumnTransformer. Then each of its transformers
takes its own columns, as one matrix too, or one by one if it encodes categories, whose types may differ.
"""

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shiplift.runtime.model.conversion.columns import FEATURES
from shiplift.runtime.records.tensor import Datatype, TensorSpec

_ENCODERS = ("OneHotEncoder", "OrdinalEncoder")  # skl2onnx takes their columns one by one
_PARTS = ("best_estimator_", "regressor_", "estimator_", "estimator")


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """An input of the inner graph: columns of the frame, side by side, in one type. `encoded`: as categories."""

    name: str
    columns: tuple[TensorSpec, ...]
    encoded: bool

    @property
    def spec(self) -> TensorSpec:
        """Its type: texts and single columns of integers stay what they are, everything else is numbers."""
        kinds = {spec.datatype for spec in self.columns}
        datatype: Datatype = "FP64"
        if kinds == {"BYTES"}:
            datatype = "BYTES"
        elif self.encoded and not kinds & {"FP16", "FP32", "FP64"}:
            datatype = "INT64"
        return TensorSpec(name=self.name, datatype=datatype, shape=(-1, len(self.columns)))


def matrices(estimator: Any, specs: tuple[TensorSpec, ...]) -> tuple[Any, tuple[Matrix, ...]]:
    """The estimator as skl2onnx takes it, and the tensors that it takes.

    Its ColumnTransformers at the front are copies that select columns by their positions in these tensors.
    """
    if not any(_selecting(estimator)):
        return estimator, tuple(_of(estimator, specs, 0))
    estimator, found = copy.deepcopy(estimator), list[Matrix]()
    for selecting in _selecting(estimator):
        found += _numbered(selecting, specs, found)
    return estimator, tuple(found)


def _numbered(selecting: Any, specs: tuple[TensorSpec, ...], before: Sequence[Matrix]) -> list[Matrix]:
    """The tensors of a ColumnTransformer, which is changed to select them by position, after those `before` it."""
    by_name = {spec.name: spec for spec in specs}
    names = getattr(selecting, "feature_names_in_", [spec.name for spec in specs])
    found, transformers = list[Matrix](), []
    for name, part, columns in selecting.transformers_:
        chosen = tuple(by_name[str(names[at])] for at in selecting._transformer_to_input_indices.get(name, ()))
        taken = isinstance(part, str) and part == "drop"
        if taken or not chosen:
            transformers.append((name, "drop", columns))
            continue
        start = sum(len(matrix.columns) for matrix in (*before, *found))
        found += _of(part, chosen, len(before) + len(found))
        transformers.append((name, part, list(range(start, start + len(chosen)))))
    selecting.transformers_ = transformers
    return found


def _of(part: Any, columns: tuple[TensorSpec, ...], number: int) -> Iterator[Matrix]:
    """The tensors that hold columns for an estimator or transformer, counted from `number`."""
    first = part.steps[0][1] if hasattr(part, "steps") else part
    separate = type(first).__name__ in _ENCODERS
    for at, some in enumerate([(spec,) for spec in columns] if separate else [columns]):
        yield Matrix(name=f"{FEATURES}_{number + at}", columns=some, encoded=separate)


def _selecting(part: Any) -> Iterator[Any]:
    """The ColumnTransformers that take the whole frame."""
    if hasattr(part, "transformers_"):
        yield part
        return
    for inner in _first(part):
        yield from _selecting(inner)


def _first(part: Any) -> Iterable[Any]:
    """The estimators within another one that take what it takes."""
    if hasattr(part, "steps"):
        return [step for _, step in part.steps[:1]]
    if hasattr(part, "transformer_list"):
        return [transformer for _, transformer in part.transformer_list]
    if hasattr(part, "calibrated_classifiers_"):
        return list(part.calibrated_classifiers_)
    if isinstance(several := getattr(part, "estimators_", None), list):
        return several
    return [inner for name in _PARTS if (inner := getattr(part, name, None)) is not None][:1]
