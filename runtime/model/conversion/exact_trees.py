"""A logged model as exact trees: a treelite checkpoint, and questions near its thresholds with the author's answers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.model.conversion.forests import Forest, NotExactError
from shiplift.runtime.model.splits import Splits
from shiplift.runtime.model.tensors import Arrays, dump_npz, numpy_type
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.records.trees import CHECKPOINT, SPLITS, TreesForm

LABEL = "label"
_ROWS = 512
_NEAR, _MISSING = 0.5, 0.1  # shares of the values that are near a threshold, and that are missing in half of the rows
_MOST_NODES = 200_000  # of the trees whose thresholds are read
_LEAF, _CATEGORIES = -1, 2  # treelite's numbers of no child, and of a node that compares categories


def write(
    forest: Forest,
    exported: Signature,
    example: Arrays,
    answer: Callable[[Arrays], Arrays],
    to: Path,
    *,
    splits: Splits | None,
    seed: int,
) -> TreesForm:
    """Writes `to/trees/checkpoint.tl`, and `to/trees.npz` with questions, the author's answers and the model's splits.

    `exported` is the signature to serve, and `answer` what the author's model answers to such inputs. The questions are
    rows of the example with values on, just below and just above the forest's thresholds, zeros, and missing values if
    the author's model takes these.

    Raises:
        NotExactError: the forest can't have this signature.
    """
    form = _form(forest, exported)
    (to / "trees").mkdir(exist_ok=True)
    forest.model.serialize(to / "trees" / CHECKPOINT)
    asked, answers = _answered(forest, exported, example, answer, np.random.default_rng(seed))
    named = {f"input/{name}": array for name, array in asked.items()}
    named |= {f"output/{name}": array for name, array in answers.items()}
    (to / "trees.npz").write_bytes(dump_npz(named | ({} if splits is None else {SPLITS: splits})))
    return form


def _form(forest: Forest, exported: Signature) -> TreesForm:
    """How the forest's scores become the outputs of the signature."""
    for spec in exported.inputs:
        if spec.datatype in ("BYTES", "FP16") or len(spec.shape) > 2 or spec.shape[0] != -1:
            raise NotExactError(f"the input {spec.name!r} is not a column or matrix of numbers")
    return TreesForm(
        features=forest.features,
        zero_within=forest.zero_within,
        answers={spec.name: "class" if spec.name == LABEL else "scores" for spec in exported.outputs},
        scores=_scores(forest.model),
        classifier=forest.classes is not None and forest.subtracted_from is None,
        threshold=forest.threshold,
        subtracted_from=forest.subtracted_from,
        classes=_classes(forest, exported),
    )


def _scores(model: Any) -> int:
    header = model.get_header_accessor()
    return int(header.get_field("num_target")[0]) * int(header.get_field("num_class").max())


def _classes(forest: Forest, exported: Signature) -> tuple[int, ...]:
    """The values of the classes; none if they are counted from 0."""
    label = next((spec for spec in exported.outputs if spec.name == LABEL), None)
    if label is None or forest.classes is None:
        return ()
    if label.datatype not in ("INT32", "INT64") or forest.classes.dtype.kind not in "biu":
        raise NotExactError("its labels are no whole numbers")
    values, scores = tuple(int(value) for value in forest.classes), _scores(forest.model)
    if len(values) != max(scores, 2):
        raise NotExactError(f"it has {len(values)} classes and {scores} scores")
    return () if values == tuple(range(len(values))) else values


def _answered(
    forest: Forest, exported: Signature, example: Arrays, answer: Callable[[Arrays], Arrays], rng: np.random.Generator
) -> tuple[Arrays, Arrays]:
    """Questions and the author's answers; without missing values if the author's model refuses these.

    Raises:
        NotExactError: it refuses the others, too.
    """
    rows = _rows(forest.model, exported.inputs, example, rng)
    holes = (rng.random(rows.shape) < _MISSING) & (np.arange(len(rows)) % 2 == 0)[:, None]
    asked = _inputs(np.where(holes, np.nan, rows), exported.inputs)
    try:
        return asked, answer(asked)
    except Exception:
        asked = _inputs(rows, exported.inputs)
    try:
        return asked, answer(asked)
    except Exception as error:
        raise NotExactError(f"the original refuses rows near its thresholds: {' '.join(str(error).split())}") from error


def _rows(model: Any, specs: tuple[TensorSpec, ...], example: Arrays, rng: np.random.Generator) -> NDArray[np.float64]:
    logged = np.concatenate([_matrix(example[spec.name]) for spec in specs], axis=1)
    rows = logged[rng.integers(len(logged), size=_ROWS)]
    for column, near in _near(model).items():
        values = rng.choice(np.append(near, [0.0, -0.0]), _ROWS)
        rows[:, column] = np.where(rng.random(_ROWS) < _NEAR, values, rows[:, column])
    return rows


def _matrix(array: NDArray[Any]) -> NDArray[np.float64]:
    return array.reshape(len(array), -1).astype(np.float64)


def _near(model: Any) -> dict[int, NDArray[np.float64]]:
    """By feature, values on and beside its thresholds and categories."""
    found: dict[int, list[NDArray[np.float64]]] = {}
    count = 0
    for at in range(model.num_tree):
        tree = model.get_tree_accessor(at)
        inner, categories = tree.get_field("cleft") != _LEAF, tree.get_field("category_list").astype(np.float64)
        of_categories, features = tree.get_field("node_type") == _CATEGORIES, tree.get_field("split_index")
        thresholds = tree.get_field("threshold").astype(np.float64)
        for feature in np.unique(features[inner]):
            own = inner & (features == feature)
            near = _neighbours(thresholds[own & ~of_categories])
            near = np.append(near, _beside(categories)) if (own & of_categories).any() else near
            found.setdefault(int(feature), []).append(near)
        count += len(thresholds)
        if count > _MOST_NODES:
            break
    return {feature: np.concatenate(values) for feature, values in found.items()}


def _neighbours(thresholds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Thresholds in 32 bits, with the numbers just below and just above."""
    single = thresholds.astype(np.float32)
    sides = [np.nextafter(single, np.float32(side)) for side in (-np.inf, np.inf)]
    every = np.concatenate([single, *sides]).astype(np.float64)
    return every[np.isfinite(every)]  # a split into missing and known values has an infinite threshold


def _beside(categories: NDArray[np.float64]) -> NDArray[np.float64]:
    """Categories, and numbers that are none."""
    return np.concatenate([categories, categories + 1, categories + 0.5, [-1.0]])


def _inputs(rows: NDArray[np.float64], specs: tuple[TensorSpec, ...]) -> Arrays:
    """The columns as the inputs of a signature: whole numbers are rounded, and can't be missing."""
    inputs: Arrays = {}
    for spec in specs:
        size = int(np.prod(spec.shape[1:]))
        part, rows = rows[:, :size], rows[:, size:]
        if spec.datatype not in ("FP32", "FP64"):
            part = np.nan_to_num(part).round()
            part = part != 0 if spec.datatype == "BOOL" else part
        inputs[spec.name] = part.astype(numpy_type(spec.datatype)).reshape(-1, *spec.shape[1:])
    return inputs
