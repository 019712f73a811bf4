"""The questions as a whole: right shapes and dtypes, as many as the budget allows, and always the same."""

from collections import Counter
from typing import Any, get_args

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shiplift.runtime.model.tensors import Arrays, numpy_type
from shiplift.runtime.proof.questions.asking import questions
from shiplift.runtime.proof.questions.question import Budget, KnownRows, QuestionSet
from shiplift.runtime.records.facts import ColumnFacts, ModelFacts
from shiplift.runtime.records.tensor import Datatype, TensorSpec

TRAILING = st.sampled_from([(), (1,), (4,), (-1,), (2, 3), (-1, 2)])


@st.composite
def _models(draw: st.DrawFn) -> tuple[ModelFacts, KnownRows]:
    """One to three inputs of any kind, with facts about their columns or without, and one to three known rows."""
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    kinds = draw(st.lists(st.tuples(st.sampled_from(get_args(Datatype)), TRAILING), min_size=1, max_size=3))
    specs = tuple(
        TensorSpec(name=f"in{at}", datatype=kind, shape=(-1, *shape)) for at, (kind, shape) in enumerate(kinds)
    )
    told = st.builds(
        ColumnFacts,
        input=st.sampled_from([spec.name for spec in specs]),
        index=st.none() | st.just(0),
        thresholds=st.lists(st.floats(-10, 10), max_size=3).map(tuple),
        categories=st.just(()) | st.just((1, 2)) | st.just(("a", "é")),
        sentinels=st.just(()) | st.just((-1.0,)),
        table_rows=st.none() | st.just(100),
        missing=st.none() | st.booleans(),
    )
    facts = ModelFacts(inputs=specs, columns=tuple(draw(st.lists(told, max_size=2))))
    count = draw(st.integers(1, 3))
    return facts, KnownRows(example={spec.name: _values(spec, count, rng) for spec in specs})


def _values(spec: TensorSpec, count: int, rng: np.random.Generator) -> Any:
    shape = (count, *(5 if size == -1 else size for size in spec.shape[1:]))
    drawn = rng.integers(0, 9, shape)
    return drawn.astype(str).astype(object) if spec.datatype == "BYTES" else drawn.astype(numpy_type(spec.datatype))


@given(_models(), st.integers(1, 300), st.integers(0, 9))
def test_rows_fit_the_inputs_and_the_budget(model: tuple[ModelFacts, KnownRows], rows: int, seed: int) -> None:
    facts, known = model
    asked = questions(facts, known, Budget(rows=rows), seed)
    for part in asked.questions:
        for spec in facts.inputs:
            array = part.inputs[spec.name]
            assert array.dtype == numpy_type(spec.datatype)
            assert len(array) == len(part.origins)
            assert all(size in (-1, own) for size, own in zip(spec.shape[1:], array.shape[1:], strict=True))
    assert len({tuple(array.shape[1:] for array in part.inputs.values()) for part in asked.questions}) == len(
        asked.questions
    )
    assert 0 < sum(len(part.origins) for part in asked.questions) <= rows
    assert asked.questions[0].origins[0] == "example"


@given(_models(), st.integers(0, 9))
def test_the_same_seed_asks_the_same(model: tuple[ModelFacts, KnownRows], seed: int) -> None:
    first, second = (questions(*model, Budget(rows=200), seed) for _ in range(2))
    assert first.left_out == second.left_out
    for left, right in zip(first.questions, second.questions, strict=True):
        assert left.origins == right.origins
        for name, array in left.inputs.items():
            np.testing.assert_array_equal(array, right.inputs[name])


def _table(budget: Budget, rows: int = 40, seed: int = 0) -> tuple[QuestionSet, Arrays]:
    rng = np.random.default_rng(0)
    spec = TensorSpec(name="x", datatype="FP64", shape=(-1, 6))
    splits = [tuple(rng.normal(size=80)) for _ in range(6)]
    columns = tuple(ColumnFacts(input="x", index=at, thresholds=each, infinite=False) for at, each in enumerate(splits))
    known = KnownRows(example={"x": rng.normal(size=(2, 6))}, validation={"x": rng.normal(size=(rows, 6))})
    return questions(
        ModelFacts(inputs=(spec,), columns=columns, notes=("A note.",)), known, budget, seed
    ), known.validation


def _origins(asked: QuestionSet) -> Counter[str]:
    return Counter(origin.partition(":")[0] for part in asked.questions for origin in part.origins)


def test_a_table_gets_thousands_of_rows_of_every_origin() -> None:
    asked, validation = _table(Budget(rows=2500))
    origins = _origins(asked)
    assert origins.total() == 2500
    assert {"example", "validation", "range", "zero", "threshold", "tie", "several"} <= set(origins)
    assert origins["validation"] == len(validation["x"])
    assert {f"threshold:x[{at}]" for at in range(6)} <= set(asked.questions[0].origins)


def test_a_row_for_a_special_value_differs_from_a_known_row_in_one_column() -> None:
    asked, validation = _table(Budget(rows=1000))
    part = asked.questions[0]
    for row, origin in zip(part.inputs["x"], part.origins, strict=True):
        if origin.startswith(("threshold", "zero")):
            assert ((row == validation["x"]).sum(axis=1).max() >= 5) or origin  # the example's rows are bases, too
            bases = np.concatenate([part.inputs["x"][:2], validation["x"]])
            assert (row == bases).sum(axis=1).max() >= 5


def test_a_slow_model_is_asked_less_and_what_is_left_out_is_said() -> None:
    asked, _ = _table(Budget(rows=2500, seconds=5, seconds_per_row=0.1))
    origins = _origins(asked)
    assert origins.total() == 50
    assert {"example", "validation", "range", "threshold"} <= set(origins)
    assert any(
        "of 40 validation rows were not asked: each takes about 0.1 s, and there are 5 s" in line
        for line in asked.left_out
    )
    assert "A note." in asked.left_out


def test_one_row_is_asked_of_a_model_that_takes_ever_so_long() -> None:
    asked, _ = _table(Budget(rows=2500, seconds=5, seconds_per_row=60))
    assert _origins(asked) == {"example": 1}


def test_what_is_not_sent_is_said() -> None:
    asked, _ = _table(Budget())
    assert any(
        line.startswith("Missing values were not asked in x[0]") and "unknown" in line for line in asked.left_out
    )
    assert any(line.startswith("Infinities were not asked") and "does not take them" in line for line in asked.left_out)


def test_many_validation_rows_leave_room_for_the_others() -> None:
    asked, validation = _table(Budget(rows=600), rows=100_000)
    origins = _origins(asked)
    assert origins["validation"] >= 100
    assert origins["threshold"] >= 100
    part = asked.questions[0]
    taken = part.inputs["x"][[origin == "validation" for origin in part.origins]]
    assert set(map(tuple, taken)) <= set(map(tuple, validation["x"]))


def test_inputs_of_any_length_are_asked_in_other_lengths_together() -> None:
    specs = tuple(TensorSpec(name=name, datatype="INT64", shape=(-1, -1)) for name in ("ids", "mask"))
    example = {"ids": np.arange(24).reshape(2, 12), "mask": np.ones((2, 12), np.int64)}
    asked = questions(ModelFacts(inputs=specs), KnownRows(example=example), Budget(rows=800), 0)
    lengths = [part.inputs["ids"].shape[1] for part in asked.questions]
    assert lengths[0] == 12
    assert {1, 11, 13, 24} <= set(lengths)
    assert all(part.inputs["ids"].shape == part.inputs["mask"].shape for part in asked.questions)


def test_known_rows_of_another_shape_are_asked_as_they_are() -> None:
    spec = TensorSpec(name="x", datatype="FP32", shape=(-1, -1))
    recorded = np.ones((3, 7), np.float32)
    known = KnownRows(example={"x": np.zeros((1, 4), np.float32)}, recorded={"x": recorded})
    asked = questions(ModelFacts(inputs=(spec,)), known, Budget(rows=500), 0)
    rows = [part for part in asked.questions if "recorded" in part.origins]
    assert [part.inputs["x"].shape[1] for part in rows] == [7]
    assert Counter(rows[0].origins)["recorded"] == 3


def test_a_wide_matrix_is_asked_as_a_whole_besides_the_columns_that_the_model_tells_of() -> None:
    spec = TensorSpec(name="x", datatype="FP32", shape=(-1, 3000))
    facts = ModelFacts(inputs=(spec,), columns=(ColumnFacts(input="x", index=7, thresholds=(0.5,)),))
    rows = np.random.default_rng(0).random((3, 3000), np.float32)
    asked = questions(facts, KnownRows(example={"x": rows}), Budget(rows=500), 0)
    assert {"tensor", "range", "threshold:x[7]"} <= set(asked.questions[0].origins)
    of_column = [origin == "threshold:x[7]" for origin in asked.questions[0].origins]
    assert np.float32(0.5) in asked.questions[0].inputs["x"][of_column, 7]


def test_ten_million_validation_rows_are_sampled_and_the_rest_is_counted() -> None:
    rows = 10_000_000
    example = {"x": np.zeros((2, 3), np.float32)}
    known = KnownRows(example=example, validation={"x": np.broadcast_to(np.float32(1), (rows, 3))})  # in 4 bytes
    spec = TensorSpec(name="x", datatype="FP32", shape=(-1, 3))
    asked = questions(ModelFacts(inputs=(spec,)), known, Budget(rows=500), 0)
    origins = Counter(origin for part in asked.questions for origin in part.origins)
    assert 100 < origins["validation"] <= 500 - origins["example"]
    assert f"{rows - origins['validation']} of {rows} validation rows were not asked: at most 500" in asked.left_out[0]
