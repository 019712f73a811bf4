"""What is served is limited to what it answers rightly: numbers far from all that are known get an error otherwise."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.comparison import compare
from shiplift.runtime.proof.guards.limits import limits
from shiplift.runtime.proof.oracle import answers_to
from shiplift.runtime.proof.questions.asking import questions
from shiplift.runtime.proof.questions.question import Budget, KnownRows, Questions
from shiplift.runtime.records.facts import ColumnFacts, ModelFacts
from shiplift.runtime.records.guards import Guard
from tests.unit.examples import tensor

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(8, 6)).astype(np.float32)
FACTS = ModelFacts(inputs=(tensor("x", -1, 6),))
Function = Callable[[Any], Any]


def asked(rows: Any = ROWS, facts: ModelFacts = FACTS) -> Any:
    return questions(facts, KnownRows(example={"x": rows}), Budget(rows=200), 1)


def limited(original: Function, served: Function, rows: Any = ROWS) -> tuple[Guard, ...] | None:
    """The limits of what is served in place of the original."""

    def ask(function: Function) -> Callable[[Arrays], Arrays]:
        return lambda inputs: {"y": function(inputs["x"]).reshape(-1, 1)}

    made = asked(rows)
    with np.errstate(all="ignore"):
        right, given = (answers_to(ask(each), made.far.inputs, batches=True) for each in (original, served))
    found = compare(right, given, list(map(str, range(len(right.errors)))))
    wrong = np.zeros(len(right.errors), dtype=np.bool_)
    wrong[[int(each.origin) for each in found.wrong]] = True
    known = [(each, Answers.of({"y": np.zeros(len(each.origins))})) for each in made.questions]
    return limits(made.far, wrong, known)


def test_what_is_served_rightly_has_no_limits() -> None:
    assert limited(lambda x: x.max(axis=1), lambda x: -(-x).min(axis=1)) == ()


def test_a_maximum_past_nan_takes_none() -> None:
    assert limited(lambda x: x.max(axis=1), lambda x: np.fmax.reduce(x, axis=1)) == (Guard(input="x", missing=False),)


@pytest.mark.parametrize(
    ("original", "served"),
    [
        pytest.param(lambda x: x.sum(axis=1), lambda x: x[:, ::2].sum(axis=1) + x[:, 1::2].sum(axis=1), id="order"),
        pytest.param(
            lambda x: x.astype(np.float64).std(axis=1).astype(np.float32), lambda x: x.std(axis=1), id="squares"
        ),
    ],
)
def test_overflow_in_another_place_ends_the_range(original: Function, served: Function) -> None:
    (guard,) = limited(original, served) or ()

    assert guard.low is not None
    assert guard.high is not None
    assert 1e3 < guard.high == -guard.low < float(np.finfo(np.float32).max)


def test_inputs_that_overflow_only_together_are_limited() -> None:
    """As an attention does, whose sums are infinite: it answers 0, and NaN after another order of additions."""

    def product(inputs: Arrays) -> Any:
        return (inputs["a"] * np.float32(1e-12) * (inputs["b"] * np.float32(1e-12))).sum(axis=1, keepdims=True)

    facts = ModelFacts(inputs=(tensor("a", -1, 6), tensor("b", -1, 6)))
    made = questions(facts, KnownRows(example={"a": ROWS, "b": ROWS + 1}), Budget(rows=200), 1)
    with np.errstate(all="ignore"):
        wrong = ~np.isfinite(product(made.far.inputs))[:, 0] & np.isfinite(list(made.far.inputs.values())).all((0, 2))
    known = [(each, Answers.of({"y": np.zeros(len(each.origins))})) for each in made.questions]
    guards = limits(made.far, wrong, known)

    assert 0 < wrong.sum() < len(wrong)
    assert guards
    assert [guard.input for guard in guards] == ["a", "b"]
    assert all(guard.high and 1e3 < guard.high < 1e38 for guard in guards)


def test_rows_of_the_author_are_never_refused() -> None:
    rows = ROWS.copy()
    rows[0, 0] = np.nan

    assert limited(lambda x: x.max(axis=1), lambda x: np.fmax.reduce(x, axis=1), rows) is None


def test_nothing_far_is_asked_of_a_model_that_says_what_it_takes() -> None:
    told = ModelFacts(inputs=FACTS.inputs, columns=(ColumnFacts(input="x", missing=False, infinite=False),))

    assert asked(facts=told).far == Questions(inputs={}, origins=())
    assert asked().far.origins


def test_whole_numbers_that_overflow_together_drop_what_is_served() -> None:
    counts = RNG.integers(0, 9, (8, 4)).astype(np.int32)
    facts = ModelFacts(inputs=(tensor("x", -1, 4, datatype="INT32"),))
    made = asked(counts, facts)
    exact, rounded = (made.far.inputs["x"].prod(axis=1, dtype=dtype) for dtype in (np.int64, np.float64))
    wrong = exact != rounded
    known = [(each, Answers.of({"y": each.inputs["x"]})) for each in made.questions]

    assert 0 < wrong.sum() < len(wrong)
    assert limits(made.far, wrong, known) is None


@pytest.mark.slow
def test_of_large_rows_few_are_asked_that_are_far() -> None:
    rows = np.ones((2, 512, 512), np.float32)
    far = asked(rows, ModelFacts(inputs=(tensor("x", -1, 512, 512),))).far

    assert len(far.origins) == 8
    assert not np.isfinite(far.inputs["x"]).all()
