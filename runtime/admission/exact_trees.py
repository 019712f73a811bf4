"""The proof of a forest: its answers on questions near its thresholds are the author's, or the first that is not.

It is part of the second sandboxed half of the export, which runs none of the author's code.
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from shiplift.runtime.base.errors import ExportFailed, MissingTool, QuantizeFailed
from shiplift.runtime.model import onnx_models, trees_models
from shiplift.runtime.model.splits import of_forest, of_graph, strange
from shiplift.runtime.model.tensors import load_npz, under
from shiplift.runtime.model.trees_models import TreesSession
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.records.trees import CHECKPOINT, SPLITS, TreesForm

_RELATIVE, _OF_SPREAD = 2e-6, 1e-6  # of a value, and of its column's spread: sums of leaves in 32 bits differ as much


def checked(folder: Path, form: TreesForm, signature: Signature) -> TreesSession | str:
    """A session of the forest in `folder/trees`, or why it doesn't answer what `folder/trees.npz` says.

    Raises:
        DataInvalid: the questions can't be read.
    """
    try:
        running = trees_models.session(folder / "trees" / CHECKPOINT, form, signature)
    except (MissingTool, QuantizeFailed) as error:
        return error.what
    arrays = load_npz(folder / "trees.npz")
    if SPLITS in arrays and (other := strange(of_forest(running.forest), arrays[SPLITS])):
        return f"the trees are not the model's: {other}"
    try:
        answers, expected = onnx_models.answer(running, under("input/", arrays)), under("output/", arrays)
    except Exception as error:
        return f"the trees don't answer: {' '.join(str(error).split())[:300]}"
    found = (_first(spec, expected[spec.name], answers[spec.name]) for spec in signature.outputs)
    return next((difference for difference in found if difference), running)


def require_own_splits(folder: Path, graph: onnx.GraphProto) -> None:
    """Whether the one ensemble of a graph, if it has one, has the splits of the forest beside it.

    Raises:
        ExportFailed: it has another one.
        DataInvalid: the splits can't be read.
    """
    own, served = load_npz(folder / "trees.npz").get(SPLITS), of_graph(graph)
    if own is None or served is None:
        return
    if other := strange(served, own):
        raise ExportFailed(f"the graph's trees are not the model's: {other}", do="Export it to ONNX yourself.")


def _first(spec: TensorSpec, expected: NDArray[Any], actual: NDArray[Any]) -> str:
    """The first row of an output that differs."""
    wanted, got = expected.reshape(len(expected), -1), actual.reshape(len(actual), -1)
    if wanted.shape != got.shape:
        return f"{spec.name!r} has {got.shape[1]} values, the original's {wanted.shape[1]}"
    rows = np.flatnonzero(~_same(wanted, got).all(axis=1))
    if not len(rows):
        return ""
    row = rows[0]
    return f"{spec.name!r} is {got[row].tolist()} where the original answers {wanted[row].tolist()}"


def _same(wanted: NDArray[Any], got: NDArray[Any]) -> NDArray[np.bool_]:
    if wanted.dtype.kind != "f":
        return np.asarray(wanted == got)
    tolerance = _RELATIVE * np.abs(wanted) + _OF_SPREAD * np.nanstd(wanted, axis=0, keepdims=True)
    close = np.abs(wanted.astype(np.float64) - got) <= tolerance
    return np.asarray(close | (wanted == got) | (np.isnan(wanted) & np.isnan(got)))
