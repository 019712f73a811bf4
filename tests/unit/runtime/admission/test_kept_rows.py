import numpy as np

from shiplift.runtime.admission.kept_rows import kept_rows
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.file import from_file, sets_in
from shiplift.runtime.proof.questions.question import Questions
from shiplift.runtime.records.guards import Guard


def test_the_rows_that_are_kept_are_few_spread_over_all_sets_and_have_their_own_answers() -> None:
    asked: list[tuple[Questions, Answers]] = []
    for origin, count, width in (("example", 9, 3), ("range", 3000, 3), ("validation", 500, 3), ("length", 40, 60_000)):
        rows = np.random.default_rng(count).normal(size=(count, width)).astype(np.float32)
        errors = tuple("ValueError: no" if row % 10 == 5 else "" for row in range(count))
        right = Answers(outputs={"y": rows[:, :1]}, errors=errors)
        asked.append((Questions(inputs={"x": rows}, origins=(origin,) * count), right))
    arrays = kept_rows(asked, ())
    kept = [from_file(arrays, name) for name in sets_in(arrays)]
    assert [len(rows.origins) > 0 for rows, _ in kept] == [True] * 4
    assert sum(array.nbytes for name, array in arrays.items() if "/input/" in name) < 5 << 20
    assert sum(len(rows.origins) for rows, _ in kept) <= 2_010
    for questions, answers in kept:
        assert np.array_equal(answers.outputs["y"], questions.inputs["x"][:, :1])
        if questions.origins[0] not in ("example", "validation"):
            assert answers.answered.all()  # what the original refuses may be answered, if nobody ever asked it
    assert len(kept[0][0].origins) >= 8
    assert not kept[0][1].answered.all()


def test_of_rows_that_the_original_refuses_those_are_kept_that_a_guard_refuses_too() -> None:
    rows = np.arange(-100.0, 101.0, dtype=np.float32).reshape(-1, 1)
    errors = tuple("ValueError: no" if row < -40 or row > 99 else "" for row in rows[:, 0])
    right = Answers(outputs={"y": rows}, errors=errors)
    arrays = kept_rows(
        [(Questions(inputs={"x": rows}, origins=("range",) * 201), right)], (Guard(input="x", low=-40.0),)
    )
    questions, answers = from_file(arrays, "0")
    refused = questions.inputs["x"][~answers.answered, 0]
    assert 0 < len(refused) < 60
    assert (refused < -40).all()
