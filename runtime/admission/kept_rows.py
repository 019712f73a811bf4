"""Rows of the proof that are kept with the export: the packaged server is asked them again, wherever it runs."""

from collections.abc import Sequence

import numpy as np

from shiplift.runtime.admission.known_rows import GIVEN
from shiplift.runtime.admission.proving import Asked
from shiplift.runtime.model.tensors import GOLDEN_SAMPLES, Arrays
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.file import in_file
from shiplift.runtime.proof.guards.learning import refused_rows
from shiplift.runtime.proof.questions.question import Questions
from shiplift.runtime.records.guards import Guard

_MOST_ROWS, _MOST_BYTES, _MOST_REFUSED = 2_000, 4 << 20, 32


def kept_rows(asked: Asked, guards: Sequence[Guard]) -> Arrays:
    """The arrays of a file with as many rows of each set as fit, spread over the set; at least one of each.

    The first of the example are always among them: production is asked these again and again. Of made rows that the
    original refuses, only those are among them that the guards refuse, too: what is served may answer the others.
    """
    sets = [(questions, answers, _usable(questions, answers, guards)) for questions, answers in asked]
    sets = [each for each in sets if each[2].size]
    rows = sum(usable.size for *_, usable in sets)
    size = sum(_row_bytes(questions, answers) * usable.size for questions, answers, usable in sets)
    share = min(1.0, _MOST_ROWS / max(rows, 1), _MOST_BYTES / max(size, 1))
    inputs, right, origins = {}, {}, {}
    for index, (questions, answers, usable) in enumerate(sets):
        spread = usable[np.linspace(0, usable.size - 1, max(1, int(usable.size * share))).astype(np.intp)]
        at = np.union1d(usable[: GOLDEN_SAMPLES if questions.origins[0] == GIVEN[0] else 1], spread)
        kept = questions.take(at)
        inputs[str(index)], origins[str(index)], right[str(index)] = kept.inputs, kept.origins, answers.take(at)
    return in_file(inputs, right, origins)


def _usable(
    questions: Questions, answers: Answers, guards: Sequence[Guard]
) -> "np.ndarray[tuple[int], np.dtype[np.intp]]":
    count = len(answers.errors)
    given = np.array([origin in GIVEN for origin in questions.origins[:count]], dtype=np.bool_)
    refused = np.zeros(count, dtype=np.bool_)
    refused[np.flatnonzero(~answers.answered & refused_rows(guards, [(questions, answers)]))[:_MOST_REFUSED]] = True
    return np.flatnonzero(given | answers.answered | refused)


def _row_bytes(questions: Questions, answers: Answers) -> int:
    arrays = (*questions.inputs.values(), *answers.outputs.values())
    return sum(array[:1].nbytes for array in arrays)
