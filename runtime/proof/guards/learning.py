"""Guards that part the rows which the original refused from those that it answered: they refuse none of the latter.

A row shows which column is to blame if it is strange in no other: strange is a value of which no answered row has the
like. Proposals need such a row, too, of their kind: a model may know its categories, and answer others all the same.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from shiplift.runtime.guest.graphs.guards import Guards
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.guards.seen import Flags, SeenInput
from shiplift.runtime.proof.questions.question import Questions
from shiplift.runtime.records.guards import MAX_BYTES, MAX_GUARDS, MAX_VALUES, Guard

_OTHERS = 2  # answered values that a list of categories may lack, such as what stands for a missing one
_TWO = 2

Asked = Sequence[tuple[Questions, Answers]]


def learned(asked: Asked, proposals: Sequence[Guard] = ()) -> tuple[Guard, ...]:
    """The guards of a graph that is asked these rows, in the names and dtypes of its inputs."""
    asked = [each for each in asked if each[0].origins]
    answered = np.concatenate([right.answered for _, right in asked])
    if answered.all() or not answered.any():
        return ()
    names = [name for name in asked[0][0].inputs if _guarded(name, asked)]
    inputs = {name: SeenInput.of(name, [questions.inputs[name] for questions, _ in asked], answered) for name in names}
    rows = _Rows(asked=asked, answered=answered, inputs=inputs)
    confirmed = rows.confirmed(proposals)
    unexplained = rows.blamed & ~refused_rows(confirmed, asked)
    found = [guard for seen in inputs.values() for guard in _of_input(seen, unexplained)]
    return tuple(_fitting(joined([*confirmed, *found])))


def refused_rows(guards: Sequence[Guard], asked: Asked) -> Flags:
    """Which rows of all sets are refused, (rows,)."""
    judge = Guards(guard.entry() for guard in guards)
    return np.concatenate([judge.refused(questions.inputs) for questions, _ in asked])


def _guarded(name: str, asked: Asked) -> bool:
    """Whether servers can guard an input: its values are texts or common numbers, and JSON takes its name as it is."""
    dtype = asked[0][0].inputs[name].dtype
    plain = all(each.isprintable() and each not in '"\\' for each in name)
    return plain and (dtype.kind in "iuOSU" or dtype in (np.float32, np.float64))


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """All rows, and what was seen of each input."""

    asked: Asked
    answered: Flags
    inputs: dict[str, SeenInput]

    @cached_property
    def blamed(self) -> Flags:
        """Refused rows that are strange in one place at most."""
        strange = sum(seen.strange.sum(axis=1) for seen in self.inputs.values())
        return np.asarray(~self.answered & (np.asarray(strange) <= 1), dtype=np.bool_)

    def confirmed(self, proposals: Sequence[Guard]) -> list[Guard]:
        """Proposals that refuse no answered row, of kinds that a refused row shows."""
        fitted = (self._fitted(guard) for guard in proposals if guard.input in self.inputs)
        refusing = [(guard, refused_rows([guard], self.asked)) for guard in fitted if guard]
        possible = [(guard, rows) for guard, rows in refusing if not (rows & self.answered).any()]
        shown = {_kind(guard) for guard, rows in possible if (rows & self.blamed).any()}
        return [guard for guard, _ in possible if _kind(guard) in shown]

    def _fitted(self, guard: Guard) -> Guard | None:
        """A proposal in the dtype of the graph's input; None: it can't be one."""
        seen = self.inputs[guard.input]
        if guard.column is not None and guard.column not in seen.columns:
            return None
        if not guard.values:
            return guard
        taken = list(dict.fromkeys(seen.taken(guard.column).tolist()))
        known = set(_typed(guard.values, seen.dtype))
        floats = seen.dtype.kind == "f"
        others = [value for value in taken if value not in known and not (floats and math.isnan(value))]
        values = (*sorted(known, key=str), *others)
        if not known or len(others) > _OTHERS or len(values) > MAX_VALUES:
            return None
        missing = not floats or any(map(math.isnan, taken))
        return guard.model_copy(update={"values": values, "missing": missing})


def _of_input(seen: SeenInput, unexplained: Flags) -> Iterator[Guard]:
    """What its columns show; NaN or infinities that two of them refuse, and none takes, are refused in all."""
    blamed = unexplained[:, None] & seen.strange
    for name, there in (("missing", seen.nan), ("infinite", seen.infinite)):
        shown = (blamed & there).any(axis=0) & ~there[seen.answered].any(axis=0)
        everywhere = shown.sum() >= _TWO and not there[seen.answered].any()
        places = [None] if everywhere else [seen.columns[at] for at in np.flatnonzero(shown)]
        yield from (Guard.model_validate({"input": seen.name, "column": at, name: False}) for at in places)
    if seen.dtype.kind in "iuf":
        refused = seen.infinite & ~seen.infinite[seen.answered].any(axis=0)
        blamed &= ~refused  # but where one infinity is taken, the other may be too low
        yield from _ranges(seen, blamed & seen.below, blamed & seen.above)


def _ranges(seen: SeenInput, below: Flags, above: Flags) -> Iterator[Guard]:
    """The ends of what columns take, where values below or above them were refused."""
    for at, column in enumerate(seen.columns):
        if below[:, at].any():
            taken = seen.low[seen.answered, at].min()
            yield Guard(input=seen.name, column=column, low=_from(seen.low[below[:, at], at].max(), taken))
        if above[:, at].any():
            taken = seen.high[seen.answered, at].max()
            yield Guard(input=seen.name, column=column, high=_up_to(seen.high[above[:, at], at].min(), taken))


def _typed(values: Sequence[Any], dtype: np.dtype[Any]) -> list[Any]:
    """Those of the values that the dtype holds, as it holds them."""
    if dtype.kind in "OSU":
        return [value for value in values if isinstance(value, str)]
    if dtype.kind == "f":
        return [float(value) for value in np.array(values, np.float64).astype(dtype)]
    ends = np.iinfo(dtype)
    return [int(value) for value in values if value == int(value) and ends.min <= value <= ends.max]


def _from(refused: Any, taken: Any) -> int | float:
    """The least value that is taken: the next after one that was refused, or zero if that is between."""
    if isinstance(taken, np.floating):
        following = np.nextafter(refused, np.asarray(np.inf, refused.dtype))
        return 0.0 if refused < 0 <= taken and following != taken else float(following) + 0.0
    return 0 if int(refused) < 0 <= int(taken) else int(refused) + 1


def _up_to(refused: Any, taken: Any) -> int | float:
    """The greatest value that is taken."""
    if isinstance(taken, np.floating):
        before = np.nextafter(refused, np.asarray(-np.inf, refused.dtype))
        return 0.0 if taken <= 0 < refused and before != taken else float(before) + 0.0
    return 0 if int(taken) <= 0 < int(refused) else int(refused) - 1


def _kind(guard: Guard) -> frozenset[str]:
    return frozenset(guard.entry()) - {"input", "column"} - ({"missing"} if guard.values else set())


def joined(guards: Sequence[Guard]) -> Iterator[Guard]:
    """One guard for each place, with the narrowest limits that any has."""
    places: dict[tuple[str, int | None], list[Guard]] = {}
    for guard in guards:
        places.setdefault((guard.input, guard.column), []).append(guard)
    for (name, column), own in places.items():
        lows = [each.low for each in own if each.low is not None]
        highs = [each.high for each in own if each.high is not None]
        yield Guard(
            input=name,
            column=column,
            low=max(lows, default=None),
            high=min(highs, default=None),
            missing=all(each.missing for each in own),
            infinite=all(each.infinite for each in own),
            values=next((each.values for each in own if each.values), ()),
        )


def _fitting(guards: Iterator[Guard]) -> Iterator[Guard]:
    """The first guards, as many as servers read."""
    size = 0
    for guard in itertools.islice(guards, MAX_GUARDS):
        size += len(guard.model_dump_json().encode())
        if size > MAX_BYTES:
            return
        yield guard
