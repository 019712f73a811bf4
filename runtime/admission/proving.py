"""The proof of a graph or of exact trees: asked as the original was, alone, among neighbours, and by several threads.

The first difference ends it: a graph that answers one row differently is not what its author registered.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.admission.known_rows import GIVEN
from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.guest.graphs.guards import Guards
from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.comparison import compare, counted, with_row, worst_of
from shiplift.runtime.proof.guards.learning import joined, refused_rows
from shiplift.runtime.proof.guards.limits import limits
from shiplift.runtime.proof.oracle import answers_to
from shiplift.runtime.proof.questions.far import FAR
from shiplift.runtime.proof.questions.question import Questions
from shiplift.runtime.proof.settings import MOST_NEIGHBOURS, Ask, from_threads, with_neighbours
from shiplift.runtime.records.guards import Guard
from shiplift.runtime.records.proof import ColumnDifference, Counterexample, Proof, SettingAsked

_LIMIT_S = 1.5  # for a setting
_UNREFUSED_S, _MOST_UNREFUSED = 0.5, 100
_FAR_S = 0.5  # for a setting
THREADS = 4

Asked = Sequence[tuple[Questions, Answers]]  # rows of one shape, with the original's answers


def prove(running: Any, threaded: Any, asked: Asked, guards: Sequence[Guard] = (), *, batches: bool) -> Proof:
    """Asks `running`, a session of what is served, the rows of each set as the original was asked.

    `threaded` is another session, which computes on several threads; None: the model is too large for two. Without
    `batches` the graph takes one row at a time, and is asked alone. The `guards` are in front of both.

    Raises:
        ExportFailed: a row is answered differently.
    """
    proving, ask = _Proving(asked, guards), _ask(running, guards)
    proving.plainly(ask, batches=batches)
    if batches:
        proving.among_neighbours(ask)
    proving.from_threads(ask)
    if threaded is None:
        proving.left_out.append("one request on several threads: the model is large")
    else:
        proving.ask("on several threads", _ask(threaded, guards), batches=batches)
    return proving.proof(_ask(running), batches=batches)


def limited(running: Any, far: Asked, asked: Asked, guards: Sequence[Guard], *, batches: bool) -> tuple[Guard, ...]:
    """The `guards`, and those that refuse what `running` answers otherwise of the rows that are `far` from all `asked`.

    Raises:
        ExportFailed: no guard parts such rows from what is asked.
    """
    for questions, right in far:
        first, wrong = _wrong(_ask(running, guards), questions, right, batches=batches)
        more = limits(questions, wrong, asked)
        if more is None:
            _Proving(asked, guards).plainly(_ask(running, guards), batches=batches)  # an ordinary row says more
            _require_same(with_row(first, questions.inputs))
        guards = tuple(joined([*guards, *(more or ())])) if more else guards
    return tuple(guards)


def _wrong(
    ask: Ask, questions: Questions, right: Answers, *, batches: bool
) -> tuple[Counterexample | None, NDArray[np.bool_]]:
    """Which rows are answered otherwise, alone or in batches, and the first of them; none that isn't asked in time."""
    wrong, first = np.zeros(len(right.errors), dtype=np.bool_), None
    places = tuple(map(str, range(len(right.errors))))
    for together in (False, True) if batches else (False,):
        served = answers_to(ask, questions.inputs, batches=together, seconds=_FAR_S)
        count = len(served.errors)
        found = compare(right.take(range(count)), served, places[:count])
        wrong[[int(each.origin) for each in found.wrong]] = True
        first = first or (found.first.model_copy(update={"origin": FAR}) if found.first else None)
    return first, wrong


def _ask(running: Any, guards: Sequence[Guard] = ()) -> Ask:
    judge = Guards(guard.entry() for guard in guards)

    def ask(inputs: Arrays) -> Arrays:
        if why := judge.reason(inputs):
            raise ValueError(why)
        return onnx_models.answer(running, inputs)

    return ask


class _Proving:
    """What has been seen so far. The first difference is an error."""

    def __init__(self, asked: Asked, guards: Sequence[Guard]) -> None:
        self.guards = tuple(guards)
        self.rows: dict[str, int] = {}
        self.worst: list[ColumnDifference | None] = []
        self.left_out: list[str] = []
        self.refused: list[tuple[Questions, Answers]] = []
        self.asked = [self._kept(questions, right) for questions, right in asked]

    def plainly(self, ask: Ask, *, batches: bool) -> None:
        """All rows alone and, where the graph takes `batches`, in batches."""
        self.ask("alone", ask, batches=False)
        if batches:
            self.ask("in batches", ask, batches=True)

    def ask(self, setting: str, ask: Ask, *, batches: bool) -> None:
        """All sets in turn, until the time is up."""
        end, late = time.monotonic() + _LIMIT_S, 0
        for questions, right in self.asked:
            seconds = max(0.0, end - time.monotonic())
            served = answers_to(ask, questions.inputs, batches=batches, seconds=seconds)
            self._compare(setting, questions, right, served)
            late += len(right.errors) - len(served.errors)
        if late:
            self.left_out.append(f"{late} rows {setting}: the time was up")

    def among_neighbours(self, ask: Ask) -> None:
        """The first rows of each set, at every place of a batch."""
        for questions, right in self._few():
            found = with_neighbours(ask, questions.inputs, right, questions.origins)
            _require_same(with_row(found, questions.inputs))
            self._count("at every place of a batch", len(right.errors))

    def from_threads(self, ask: Ask) -> None:
        """The same rows, from several clients at once."""
        for questions, right in self._few():
            self._compare("to several clients", questions, right, from_threads(ask, questions.inputs, THREADS))

    def proof(self, ask: Ask, *, batches: bool) -> Proof:
        """What was seen, now that nothing differs but what the original refuses."""
        origins = [origin.partition(":")[0] for questions, _ in self.asked for origin in questions.origins]
        unrefused = self._unrefused(ask)
        return Proof(
            asked=counted(origins),
            settings=tuple(SettingAsked(name=name, rows=rows) for name, rows in self.rows.items()),
            worst=worst_of(self.worst),
            batches=batches,
            left_out=tuple(self.left_out),
            guards=self.guards,
            refused=sum(len(right.errors) for _, right in self.refused),
            unrefused=unrefused,
        )

    def _few(self) -> Iterator[tuple[Questions, Answers]]:
        for questions, right in self.asked:
            yield _taken(questions, right, range(min(len(right.errors), MOST_NEIGHBOURS)))

    def _kept(self, questions: Questions, right: Answers) -> tuple[Questions, Answers]:
        """All rows but the made ones that the original refuses, which are set aside."""
        made = np.array([origin not in GIVEN for origin in questions.origins], dtype=np.bool_)
        refused = np.flatnonzero(made & ~right.answered)
        if len(refused):
            self.refused.append(_taken(questions, right, refused))
        return _taken(questions, right, np.flatnonzero(~made | right.answered))

    def _unrefused(self, ask: Ask) -> Counterexample | None:
        """A made row that the original refuses, and neither a guard nor the graph; one that clients may send first."""
        end, found = time.monotonic() + _UNREFUSED_S, list[Counterexample]()
        for questions, right in self.refused:
            judge = refused_rows(self.guards, [(questions, right)])
            rest = _taken(questions, right, np.flatnonzero(~judge)[:_MOST_UNREFUSED])
            if not rest[1].errors:
                continue
            self.left_out.append(f"{len(rest[1].errors)} made rows that the original refuses ({rest[1].errors[0]})")
            served = answers_to(ask, rest[0].inputs, batches=False, seconds=max(0.0, end - time.monotonic()))
            for row in np.flatnonzero(served.answered).tolist():
                few = _taken(*rest, [row])
                if differs := compare(few[1], served.take([row]), few[0].origins, setting="alone").first:
                    found.append(differs)
        return next((each for each in found if each.likely), next(iter(found), None))

    def _compare(self, setting: str, questions: Questions, right: Answers, served: Answers) -> None:
        count = len(served.errors)
        found = compare(right.take(range(count)), served, questions.origins[:count], setting=setting)
        _require_same(with_row(found.first, questions.inputs))
        self.worst.append(found.worst)
        self._count(setting, count)

    def _count(self, setting: str, rows: int) -> None:
        self.rows[setting] = self.rows.get(setting, 0) + rows


def _taken(questions: Questions, right: Answers, rows: Sequence[int] | NDArray[np.intp]) -> tuple[Questions, Answers]:
    """These rows of both."""
    return questions.take(rows), right.take(rows)


def _require_same(found: Counterexample | None) -> None:
    if found:
        raise ExportFailed(
            f"what would be served is not the model: {found}",
            do="Let the model's own library serve it (`export: {fallback: auto}`), or export it to ONNX yourself and "
            "log that.",
        )
