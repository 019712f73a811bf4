"""What guards are learned of an original that refuses some rows: they part its refused rows from those it answers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.guards.learning import Asked, learned, refused_rows
from shiplift.runtime.proof.guards.probing import refusals
from shiplift.runtime.proof.guards.proposals import proposed
from shiplift.runtime.proof.oracle import answers_to
from shiplift.runtime.proof.questions.asking import questions
from shiplift.runtime.proof.questions.question import Budget, KnownRows
from shiplift.runtime.records.facts import ColumnFacts, ModelFacts
from shiplift.runtime.records.guards import Guard, told
from shiplift.runtime.records.tensor import Datatype, TensorSpec
from tests.unit.examples import tensor

RNG = np.random.default_rng(0)
Takes = Callable[[Mapping[str, NDArray[Any]]], bool]


@dataclass(frozen=True, kw_only=True)
class Original:
    """An original of these inputs that takes only some rows, and what is known of it."""

    inputs: tuple[TensorSpec, ...]
    example: Arrays
    takes: Takes
    facts: tuple[ColumnFacts, ...] = ()

    def ask(self, inputs: Arrays) -> Arrays:
        rows = len(next(iter(inputs.values())))
        for row in range(rows):
            if not self.takes({name: array[row] for name, array in inputs.items()}):
                raise ValueError("this row is not for me")
        return {"y": np.zeros(rows, np.float32)}

    def asked(self, *, narrow: bool = False) -> Asked:
        """Questions and answers, as the export makes them."""
        facts = ModelFacts(inputs=self.inputs, columns=self.facts)
        made = questions(facts, KnownRows(example=self.example), Budget(rows=400), 1, coarse=narrow).questions
        asked = [(each, answers_to(self.ask, each.inputs, batches=True)) for each in made]
        first, right = asked[0]
        more = refusals(self.ask, first.inputs, right, narrow=narrow, batches=True, seconds=60.0)
        if more is None:
            return asked
        taken = Answers(outputs={}, errors=("",) * len(more.taken.origins))
        return [*asked, (more.questions, more.answers), (more.taken, taken)]

    def guards(self, asked: Asked) -> tuple[Guard, ...]:
        return learned(asked, proposed(ModelFacts(inputs=self.inputs, columns=self.facts)))


def matrix(takes: Callable[[NDArray[Any]], Any], datatype: Datatype, example: Any, **facts: Any) -> Original:
    """An original of one matrix; the facts are those of all elements."""
    array = np.asarray(example)
    spec = tensor("x", -1, array.shape[1], datatype=datatype)
    known = (ColumnFacts(input="x", **facts),) if facts else ()
    return Original(inputs=(spec,), example={"x": array}, takes=lambda row: bool(takes(row["x"])), facts=known)


FLOATS = RNG.uniform(0.5, 3.0, (30, 4))
SINGLES = FLOATS.astype(np.float32)
IDS = RNG.integers(0, 10, (30, 1))
CODES = RNG.choice([1, 2, 5, 9], (30, 1))
CITIES = RNG.choice(np.array(["Rom", "Wien", "Zürich"], object), (30, 1))


@pytest.mark.parametrize(
    ("original", "expected"),
    [
        (matrix(lambda x: np.isfinite(x).all(), "FP64", FLOATS), "'x': no NaN, nothing infinite"),
        (matrix(lambda x: not np.isinf(x).any(), "FP32", SINGLES), "'x': nothing infinite"),
        (matrix(lambda x: not np.isnan(x[2]), "FP64", FLOATS), "'x' column 2: no NaN"),
        (matrix(lambda x: not x[1] < 0, "FP64", FLOATS), "'x' column 1: at least 0.0"),
        (matrix(lambda x: not x[0] <= 0, "FP64", FLOATS), "'x' column 0: at least 5e-324"),
        (matrix(lambda x: not x[3] < 0.25, "FP32", SINGLES), "'x' column 3: at least 0.25"),
        (matrix(lambda x: not x[3] > 7.5, "FP32", SINGLES), "'x' column 3: at most 7.5"),
        (
            matrix(lambda x: abs(x[2]) <= 1e100 or x[2] != x[2], "FP64", FLOATS),
            "'x' column 2: -1e+100 to 1e+100, nothing infinite",
        ),
        (matrix(lambda x: 0 <= x[0] < 10, "INT64", IDS, table_rows=10), "'x': 0 to 9"),
        (matrix(lambda x: -10 <= x[0] < 10, "INT64", IDS, table_rows=10), "'x': -10 to 9"),
        (matrix(lambda x: 0 <= x[0] < 17, "INT32", IDS.astype(np.int32)), "'x': 0 to 16"),
        (matrix(lambda x: x[0] >= 0, "INT64", IDS), "'x': at least 0"),
        (matrix(lambda x: x[0] in (1, 2, 5, 9), "INT64", CODES, categories=(1, 2, 5, 9)), "'x': one of 4 values"),
        (
            matrix(lambda x: x[0] in ("Rom", "Wien", "Zürich"), "BYTES", CITIES, categories=("Rom", "Wien", "Zürich")),
            "'x': one of 3 values",
        ),
        (  # what stands for a missing value is not a category, and is taken
            matrix(
                lambda x: x[0] in ("Rom", "Wien", ""),
                "BYTES",
                CITIES[CITIES[:, 0] != "Zürich"],
                categories=("Rom", "Wien"),
            ),
            "'x': one of 3 values",
        ),
    ],
)
def test_guards_refuse_what_the_original_refuses_and_nothing_else(original: Original, expected: str) -> None:
    asked = original.asked()
    guards = original.guards(asked)
    answered = np.concatenate([right.answered for _, right in asked])
    assert not answered.all()
    np.testing.assert_array_equal(refused_rows(guards, asked), ~answered)
    assert told(guards) == expected
