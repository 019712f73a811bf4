"""Rows in the corners of leaves find a split that has moved by the smallest step."""

import numpy as np

from shiplift.runtime.proof.questions.asking import questions
from shiplift.runtime.proof.questions.question import Budget, KnownRows
from shiplift.runtime.records.facts import ColumnFacts, ModelFacts
from shiplift.runtime.records.tensor import Datatype, TensorSpec


def _corner_rows(
    datatype: Datatype, boxes: tuple[tuple[tuple[int, float | None, float | None], ...], ...]
) -> np.ndarray:
    specs = tuple(TensorSpec(name=name, datatype=datatype, shape=(-1, 1)) for name in ("a", "b"))
    facts = ModelFacts(inputs=specs, columns=tuple(ColumnFacts(input=spec.name) for spec in specs), boxes=boxes)
    example = {spec.name: np.array([[50], [60]]) for spec in specs}
    part = questions(facts, KnownRows(example=example), Budget(rows=3000), 0).questions[0]
    leaf = [origin == "leaf" for origin in part.origins]
    return np.column_stack([part.inputs["a"], part.inputs["b"]])[leaf]


def test_both_corners_of_a_leaf_are_asked() -> None:
    rows = _corner_rows("FP32", (((0, 1.0, 2.0), (1, None, 0.1)),))
    below = np.float32(0.1) if float(np.float32(0.1)) <= 0.1 else np.nextafter(np.float32(0.1), np.float32(-1))
    expected = {(np.float32(2.0), below), (np.nextafter(np.float32(1.0), np.float32(2)), below)}
    assert set(map(tuple, rows)) == expected


def test_leaves_that_agree_share_a_row() -> None:
    rows = _corner_rows("FP64", (((0, None, 1.0),), ((1, 3.0, None),)))
    assert set(map(tuple, rows)) == {(1.0, float(np.nextafter(3.0, 4)))}


def test_a_leaf_that_no_whole_number_reaches_is_left_out() -> None:
    values = _corner_rows("INT64", (((0, 1.2, 1.8),), ((1, 2.0, 4.5),)))
    assert set(values[:, 0]) <= {50, 60}
    assert set(values[:, 1]) == {3, 4}
