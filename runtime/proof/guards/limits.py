"""Guards of a form that is right but for numbers far from all that are known: those get an error, no wrong answer.

An engine may answer NaN, infinities and numbers near the end of the type otherwise than the original does. That need
not cost the form, since hardly any client sends them; but it must not answer them.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.guards.learning import Asked, refused_rows
from shiplift.runtime.proof.questions.question import Questions
from shiplift.runtime.proof.tolerances import largest_in_rows
from shiplift.runtime.records.guards import Guard

Flags = NDArray[np.bool_]
_MARGIN = 1e-3
_NO_ANSWERS = Answers(outputs={}, errors=())


def limits(far: Questions, wrong: Flags, asked: Asked) -> tuple[Guard, ...] | None:
    """Guards that refuse the rows that are answered `wrong`, (rows,), and none of those `asked`.

    None: there are none, since the author's own rows are as far.
    """
    if not wrong.any():
        return ()
    guards = tuple(guard for name in far.inputs for guard in _of_input(name, far.inputs, wrong, asked))
    rows = [each for each in asked if each[0].origins]
    refused = refused_rows(guards, [(far, _NO_ANSWERS)])
    return guards if refused[wrong].all() and not refused_rows(guards, rows).any() else None


def _of_input(name: str, far: Arrays, wrong: Flags, asked: Asked) -> Iterator[Guard]:
    """One guard at most: a magnitude that includes infinities, or these alone, and NaN."""
    if far[name].dtype.kind != "f":
        return
    values = far[name].reshape(len(wrong), -1).astype(np.float64)
    known = max(largest_in_rows(each[0].inputs[name]).max(initial=0.0) for each in asked if each[0].origins)
    largest, missing = largest_in_rows(values), np.isnan(values).any(axis=1)
    infinite = np.isinf(values).any(axis=1)
    beyond = (largest > known) & ~infinite
    given = {
        "missing": not (missing & wrong).any(),
        "infinite": not (infinite & wrong).any(),
    }
    if (bad := beyond & wrong).any():
        end = _plain(_well_below(float(largest[bad].min()), known), known)
        yield Guard(input=name, low=-end, high=end, **given)
    elif not all(given.values()):
        yield Guard(input=name, **given)


def _well_below(wrong: float, known: float) -> float:
    """A magnitude far below one that is answered wrongly, since not all between were asked; never below known ones."""
    return max(known, wrong * _MARGIN, float(np.sqrt(wrong) * np.sqrt(known)))


def _plain(end: float, known: float) -> float:
    """A power of ten up to the end, unless known values are beyond it: people read it."""
    power = 10.0 ** np.floor(np.log10(end)) if end > 0 else 0.0
    return float(power) if power >= known else end
