"""The proof of an exported graph: asked as the original was, alone, among neighbours, and by several threads.

The first difference ends it: a graph that answers one row differently is not what its author registered.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.comparison import compare, counted, worst_of
from shiplift.runtime.proof.oracle import answers_to
from shiplift.runtime.proof.settings import MOST_NEIGHBOURS, Ask, count_of, from_threads, rows_of, with_neighbours
from shiplift.runtime.records.proof import ColumnDifference, Counterexample, Proof, SettingAsked

_LIMIT_S = 5.0  # for each set in each setting
_THREADS = 4
_LARGE_BYTES = 64 << 20  # such a model is not loaded twice

Asked = Mapping[str, tuple[Arrays, Answers]]  # rows with the original's answers, by set


def prove(file: Path, running: Any, asked: Asked, *, batches: bool) -> Proof:
    """Asks `running`, a session of the graph in `file`, the rows of each set as the original was asked.

    Without `batches` the graph takes one row at a time, and is asked alone.

    Raises:
        ExportFailed: a row is answered differently.
    """
    proving = _Proving(asked)
    proving.ask("alone", _ask(running), batches=False)
    if batches:
        proving.ask("in batches", _ask(running), batches=True)
        proving.among_neighbours(_ask(running))
    proving.from_threads(_ask(running))
    if sum(each.stat().st_size for each in file.parent.iterdir()) > _LARGE_BYTES:
        proving.left_out.append("one request on several threads: the model is large")
    else:
        proving.ask("on several threads", _ask(onnx_models.session(file, threads=_THREADS)), batches=batches)
    return proving.proof(batches=batches)


def _ask(running: Any) -> Ask:
    return lambda inputs: onnx_models.answer(running, inputs)


class _Proving:
    """What has been seen so far. The first difference is an error."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.rows: dict[str, int] = {}
        self.worst: list[ColumnDifference | None] = []
        self.left_out: list[str] = []

    def ask(self, setting: str, ask: Ask, *, batches: bool) -> None:
        """All sets, each until its time is up."""
        for name, (inputs, right) in self.asked.items():
            self._compare(setting, name, right, answers_to(ask, inputs, batches=batches, seconds=_LIMIT_S))

    def among_neighbours(self, ask: Ask) -> None:
        """The first rows of each set, at every place of a batch."""
        for name, few, right in self._few():
            _require_same(with_neighbours(ask, few, right, [name] * count_of(few)))
            self._count("at every place of a batch", count_of(few))

    def from_threads(self, ask: Ask) -> None:
        """The same rows, from several clients at once."""
        for name, few, right in self._few():
            self._compare("to several clients at once", name, right, from_threads(ask, few, _THREADS))

    def proof(self, *, batches: bool) -> Proof:
        """What was seen, now that nothing differs."""
        return Proof(
            asked=counted([name for name, (_, right) in self.asked.items() for _ in right.errors]),
            settings=tuple(SettingAsked(name=name, rows=rows) for name, rows in self.rows.items()),
            worst=worst_of(self.worst),
            batches=batches,
            left_out=tuple(self.left_out),
        )

    def _few(self) -> Iterator[tuple[str, Arrays, Answers]]:
        for name, (inputs, right) in self.asked.items():
            rows = range(min(count_of(inputs), MOST_NEIGHBOURS))
            yield name, rows_of(inputs, rows), right.take(rows)

    def _compare(self, setting: str, name: str, right: Answers, served: Answers) -> None:
        count, total = len(served.errors), len(right.errors)
        found = compare(right.take(range(count)), served, [name] * count, setting=setting)
        _require_same(found.first)
        self.worst.append(found.worst)
        self._count(setting, count)
        if count < total:
            self.left_out.append(f"{total - count} of {total} {name} rows {setting}: the time was up")

    def _count(self, setting: str, rows: int) -> None:
        self.rows[setting] = self.rows.get(setting, 0) + rows


def _require_same(found: Counterexample | None) -> None:
    if found:
        raise ExportFailed(
            f"the exported graph is not the model: {found}",
            do="Let the model's own code serve it (`export: {fallback: python}` with `admission: {python: sandbox}`), "
            "or export it to ONNX yourself and log that.",
        )
