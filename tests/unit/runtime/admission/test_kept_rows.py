import numpy as np

from shiplift.runtime.admission.kept_rows import kept_rows
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.file import from_file, sets_in
from shiplift.runtime.proof.questions.question import Questions


def test_the_rows_that_are_kept_are_few_spread_over_all_sets_and_have_their_own_answers() -> None:
    asked: list[tuple[Questions, Answers]] = []
    for origin, count, width in (("example", 9, 3), ("range", 3000, 3), ("validation", 500, 3), ("length", 40, 60_000)):
        rows = np.random.default_rng(count).normal(size=(count, width)).astype(np.float32)
        errors = tuple("ValueError: no" if row % 10 == 5 else "" for row in range(count))
        right = Answers(outputs={"y": rows[:, :1]}, errors=errors)
        asked.append((Questions(inputs={"x": rows}, origins=(origin,) * count), right))
    arrays = kept_rows(asked)
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
