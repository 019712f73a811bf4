"""LightGBM's trees in FP64, in which it compares features and adds leaves; onnxmltools writes them in FP32.

The converter gets a booster whose thresholds and leaves are numbered. Their numbers come through FP32 unchanged, and
then give way to what they stand for.
"""

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from shiplift.runtime.model.conversion.double_trees import WEIGHTS, numbers_of, with_tables
from shiplift.runtime.model.conversion.sklearn_trees import within

ZERO = float(np.float32(1e-35))  # what is not larger is zero to LightGBM
_MOST = 1 << 24  # whole numbers that FP32 holds
_CATEGORICAL = 1  # the bit of a split by categories, whose threshold is the place of a list
_TREE = re.compile(r"(?m)^Tree=\d+$")
_LEARNING, _WITH_TENSORS = "ai.onnx.ml", 3


@dataclass(kw_only=True)
class Numbered:
    """What was numbered: thresholds and leaves, each counted from 0."""

    thresholds: list[float] = field(default_factory=list)
    leaves: list[float] = field(default_factory=list)

    def booster(self, booster: Any) -> Any:
        """A copy of a booster with numbers in place of its thresholds and leaves.

        Raises:
            ValueError: there are too many.
        """
        import lightgbm  # noqa: PLC0415 - only for LightGBM models

        text = re.sub(r"(?m)^tree_sizes=.*\n", "", booster.model_to_string())  # in bytes, which have changed
        head, *trees = _TREE.split(text)
        names = _TREE.findall(text)
        parts = [f"{name}{self._tree(tree)}" for name, tree in zip(names, trees, strict=True)]
        if max(len(self.thresholds), len(self.leaves)) > _MOST:
            raise ValueError("the booster has more nodes than FP32 can number")
        numbered = lightgbm.Booster(model_str=head + "".join(parts))
        numbered.params = booster.params
        return numbered

    def within(self, estimator: Any) -> Any:
        """The estimator, or a copy whose boosters are numbered; not if there are trees of others, which they are among.

        Raises:
            ValueError: there are too many.
        """
        parts = list(within(estimator))
        if not any(_boosts(part) for part in parts) or any(_has_other_trees(part) for part in parts):
            return estimator
        changed = copy.deepcopy(estimator)
        for part in filter(_boosts, within(changed)):
            part._Booster = self.booster(part.booster_)
        return changed

    def _tree(self, text: str) -> str:
        kinds = [int(kind) for kind in _line(text, "decision_type")]
        thresholds = [
            threshold if kind & _CATEGORICAL else self._threshold(float(threshold))
            for threshold, kind in zip(_line(text, "threshold"), kinds, strict=True)
        ]
        leaves = [self._leaf(float(leaf)) for leaf in _line(text, "leaf_value")]
        text = re.sub(r"(?m)^threshold=.*$", f"threshold={' '.join(thresholds)}", text)
        return re.sub(r"(?m)^leaf_value=.*$", f"leaf_value={' '.join(leaves)}", text)

    def _threshold(self, value: float) -> str:
        """Of the numbers that LightGBM takes for zero, all are above a threshold just below it."""
        self.thresholds.append(float(np.nextafter(-ZERO, -np.inf)) if -ZERO <= value < 0 else value)
        return str(len(self.thresholds) - 1)

    def _leaf(self, value: float) -> str:
        self.leaves.append(value)
        return str(len(self.leaves) - 1)

    def written_out(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """The converted model with thresholds and leaves in FP64 in place of numbers; its inputs are FP64."""
        if not self.leaves:
            return model
        for node in model.graph.node:
            if node.op_type in WEIGHTS:
                self._write(node)
        for value in model.graph.input:
            if value.type.tensor_type.elem_type == TensorProto.FLOAT:
                value.type.tensor_type.elem_type = TensorProto.DOUBLE
        for entry in model.opset_import:
            if entry.domain == _LEARNING:
                entry.version = max(entry.version, _WITH_TENSORS)
        return model

    def _write(self, node: onnx.NodeProto) -> None:
        fields = {each.name: each for each in node.attribute}
        kind = WEIGHTS[node.op_type]
        values, weights = numbers_of(fields, "nodes_values"), numbers_of(fields, f"{kind}_weights")
        compared = np.array(fields["nodes_modes"].strings) == b"BRANCH_LEQ"
        values[compared] = _looked_up(self.thresholds, values[compared])
        with_tables(node, {"nodes_values": values, f"{kind}_weights": _looked_up(self.leaves, weights)})


def _boosts(part: Any) -> bool:
    return hasattr(part, "booster_")


def _has_other_trees(part: Any) -> bool:
    return any(hasattr(part, name) for name in ("tree_", "_predictors", "get_booster", "tree_count_"))


def _line(text: str, name: str) -> Iterator[str]:
    found = re.search(rf"(?m)^{name}=(.*)$", text)
    yield from found[1].split() if found else ()


def _looked_up(table: list[float], numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(table, np.float64)[numbers.astype(np.int64)]
