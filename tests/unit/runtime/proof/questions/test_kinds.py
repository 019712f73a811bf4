"""Each kind of column asks what its models are known to get wrong, and draws from the column's own range."""

from typing import Any

import numpy as np
import pytest

from shiplift.runtime.model.tensors import numpy_type
from shiplift.runtime.proof.questions.column import Column
from shiplift.runtime.proof.questions.kinds import kind_of
from shiplift.runtime.records.facts import ColumnFacts
from shiplift.runtime.records.tensor import Datatype


def _column(datatype: Datatype, known: list[Any], **facts: Any) -> Column:
    array = np.array(known, numpy_type(datatype))
    return Column(
        input="x",
        index=None,
        name="x",
        datatype=datatype,
        shape=array.shape[1:],
        known=array,
        facts=ColumnFacts(input="x", **facts),
    )


def _asked(column: Column, origin: str) -> set[Any]:
    return set(kind_of(column).candidates(column, np.random.default_rng(0))[origin].ravel().tolist())


CASES: list[tuple[Column, str, set[Any]]] = [
    (_column("FP32", [1.0, 2.0]), "zero", {0.0}),
    (_column("FP32", [1.0, 2.0], sentinels=(-999.0, "?")), "sentinel", {-999.0}),
    (_column("FP32", [1.0, 2.0], infinite=True), "infinite", {np.inf, -np.inf}),
    (_column("FP64", [1.0, 2.0], thresholds=(1.5,)), "threshold:x", {1.5, float(np.nextafter(1.5, 2))}),
    (_column("FP64", [1.0, 2.0]), "range", {1.0, 2.0}),
    (_column("INT64", [3, 9], table_rows=1000), "id", {0, 999, 1000, -1, 257, 2**31, 2**32 + 3, 2**63 - 1, -(2**63)}),
    (_column("INT32", [3, 9]), "id", {2**31 - 1, -(2**31), 257}),
    (_column("INT32", [3, 9], thresholds=(4.5,)), "threshold:x", {4, 5}),
    (_column("INT64", [0, 1, 1]), "boolean", {0, 1}),
    (_column("BOOL", [True]), "boolean", {True, False}),
    (_column("INT64", [3], categories=(3, 7)), "category", {3, 7, 8, 2}),
    (_column("FP64", [3.0], categories=(3.0, 7.5)), "category", {3.0, 7.5, 8.5}),
    (_column("BYTES", ["Bonn"], categories=("Köln", "Bonn")), "category", {"Köln", "Bonn", "", "never seen"}),
    (_column("BYTES", ["a", "b", "a", "b"]), "category", {"a", "b", "A"}),
    (
        _column("BYTES", ["the cat"], words=("naïve", "cat")),
        "text",
        {"", "naïve", "naive", "čat".replace("č", "ç").replace("a", "á")},
    ),
]


def test_special_values_are_asked() -> None:
    for column, origin, expected in CASES:
        assert expected <= _asked(column, origin), (column.datatype, origin)


def test_negative_zero_is_asked() -> None:
    column = _column("FP32", [1.0])
    assert np.signbit(kind_of(column).candidates(column, np.random.default_rng(0))["zero"]).any()


def test_missing_values_are_asked_where_they_are_taken() -> None:
    for known, taken, expected in (([1.0], True, 1), ([1.0], None, 0), ([np.nan, 1.0], None, 1), ([1.0], False, 0)):
        column = _column("FP32", known, missing=taken)
        assert len(kind_of(column).candidates(column, np.random.default_rng(0))["missing"]) == expected


def test_columns_are_drawn_from_their_own_range() -> None:
    cases = [("FP32", [80.0, 90.0], 75, 95), ("FP64", [3e5, 4e5], 2.5e5, 4.5e5), ("INT64", [5, 9], 5, 9)]
    cases += [("FP64", [-999.0, 1.0, 2.0], -999, 2.5), ("UINT8", [0, 255], 0, 255), ("FP32", [7.0], -7, 21)]
    for datatype, known, low, high in cases:
        column = _column(datatype, known, sentinels=(-999.0,))  # type: ignore[arg-type]
        drawn = kind_of(column).sample(column, 500, np.random.default_rng(0))
        assert drawn.dtype == column.dtype
        assert low <= drawn.min() and drawn.max() <= high  # noqa: PT018
        assert len(set(drawn.tolist())) > 1
        assert not ((drawn > -998) & (drawn < -7)).any()


def test_ids_are_drawn_from_the_whole_table() -> None:
    column = _column("INT64", [[3, 9, 4]], table_rows=1000)
    drawn = kind_of(column).sample(column, 200, np.random.default_rng(0))
    assert drawn.shape == (200, 3)
    assert 500 < drawn.max() < 1000


def test_masks_are_ones_then_zeros_and_never_empty() -> None:
    column = _column("INT64", [[1, 1, 1, 0]])
    kind = kind_of(column)
    for masks in (
        kind.candidates(column, np.random.default_rng(0))["tensor"],
        kind.sample(column, 50, np.random.default_rng(0)),
    ):
        assert (masks[:, 0] == 1).all()
        assert (np.diff(masks, axis=1) <= 0).all()


def test_a_tensor_is_asked_with_one_element_changed() -> None:
    column = _column("FP32", [[[0.5, 0.5], [0.5, 0.5]]], missing=True)
    made = kind_of(column).candidates(column, np.random.default_rng(0))
    assert np.isnan(made["missing"]).sum() == 1
    assert all(values.shape[1:] == (2, 2) and values.dtype == np.float32 for values in made.values())


@pytest.mark.parametrize("datatype", ["INT8", "UINT8", "UINT64", "INT64", "FP16"])
def test_extreme_facts_fit_every_dtype(datatype: Datatype) -> None:
    told = {"thresholds": (-1e300, 1e300, 0.5), "sentinels": (1e200,), "missing": True}
    for facts in (told, told | {"table_rows": 2**40}, told | {"categories": (1e30, -5, True, "text")}):
        for known in ([1, 2], []):
            column = _column(datatype, known, **facts)
            kind = kind_of(column)
            for values in (
                *kind.candidates(column, np.random.default_rng(0)).values(),
                kind.sample(column, 9, np.random.default_rng(0)),
            ):
                assert values.dtype == column.dtype
