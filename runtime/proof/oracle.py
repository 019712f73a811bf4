"""The judge of right answers: the original, asked each row alone.

It may be slow, raise for some rows, give another answer each time, remember what it was asked, or mix the rows of a
batch. So it is examined first, with few rows, and then asked the others as fast as it allows, until the time is up.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.comparison import compare
from shiplift.runtime.proof.settings import (
    MOST_NEIGHBOURS,
    Ask,
    alone,
    count_of,
    joined,
    rows_of,
    together,
    with_neighbours,
)
from shiplift.runtime.records.proof import Counterexample

_FIRST, _MOST = 8, 256  # rows between two looks at the clock: twice as many each time
_FEWEST = 2  # rows that are examined, however long it takes

Clock = Callable[[], float]


@dataclass(frozen=True, kw_only=True)
class Character:
    """What the original is like: `unstable` if it answers a row differently when it is asked again, alone.

    `mixes`: a row's answer depends on the others of its batch. None: it does not.
    """

    unstable: Counterexample | None
    mixes: Counterexample | None


def examine(
    ask: Ask, inputs: Arrays, origins: Sequence[str], *, seconds: float, clock: Clock = time.monotonic
) -> Character:
    """Asks the first rows again and again, alone and among each other: as many as the time allows, but at least two."""
    started = clock()
    first = together(ask, rows_of(inputs, [0]))
    count = _affordable(count_of(inputs), clock() - started, seconds)
    rows, known = rows_of(inputs, range(count)), list(origins[:count])
    again = together(ask, rows_of(inputs, [0]))
    answers = alone(ask, rows)
    unstable = (
        compare(first, again, known, setting="asked again").first
        or compare(first, answers.take([0]), known, setting="asked twice, and once more").first
        or compare(answers, alone(ask, rows), known, setting="asked again, after others").first
    )
    return Character(unstable=unstable, mixes=None if unstable else with_neighbours(ask, rows, answers, known))


def _affordable(rows: int, seconds_each: float, seconds: float) -> int:
    """How many rows to examine: each is asked twice alone and once in every place of a batch."""
    counts = range(min(rows, MOST_NEIGHBOURS), 0, -1)
    fits = (count for count in counts if (2 * count + count * count) * seconds_each <= seconds)
    return max(next(fits, 1), min(rows, _FEWEST))


def answers_to(
    ask: Ask, inputs: Arrays, *, batches: bool, seconds: float = float("inf"), clock: Clock = time.monotonic
) -> Answers:
    """The answers to the rows, from the first one on, until the time is up: to at least one.

    With `batches` several are asked at once, and halves of them where an error may be that of any, down to one.
    """
    end, count = clock() + seconds, count_of(inputs)
    parts: list[Answers] = []
    start, step = 0, _FIRST if batches else 1
    while start < count and not (parts and clock() >= end):
        rows = rows_of(inputs, range(start, min(start + step, count)))
        parts += _parted(ask, rows)
        start, step = start + step, min(2 * step, _MOST) if batches else 1
    return joined(parts)


def _parted(ask: Ask, rows: Arrays) -> list[Answers]:
    """The answers to all rows at once, or to halves of them if there is an error: few bad rows cost few questions."""
    part, count = together(ask, rows), count_of(rows)
    if count == 1 or part.answered.all():
        return [part]
    return [
        each for half in (range(count // 2), range(count // 2, count)) for each in _parted(ask, rows_of(rows, half))
    ]
