"""The proof that what is served answers what its author's model answers: what was asked, and the first difference."""

import itertools
import json
from collections.abc import Sequence
from typing import Literal

from shiplift.runtime.records.base import Record, volatile
from shiplift.runtime.records.guards import Guard
from shiplift.runtime.records.tensor import Signature

_SHOWN = 300  # characters of a reason
_ROW = "; the row is "

FormName = Literal["FP32 graph", "exact trees", "FP64 graph", "Python"]  # in the order in which they are tried


class Counterexample(Record):
    """A question that is answered differently: its `row` of those asked, where the row comes from, and both answers.

    `setting` says how it was asked. `column` is None for what concerns a whole answer, such as its type or an error.
    `difference` and `tolerance` are None for what must be equal. `inputs` is the row itself as JSON; empty if unknown.
    """

    row: int
    origin: str
    inputs: str = ""
    setting: str = ""
    output: str = ""
    column: int | None = None
    original: str
    served: str
    difference: float | None = None
    tolerance: float | None = None

    @property
    def likely(self) -> bool:
        """Whether clients may well send such a row: all but infinities, which JSON can't carry."""
        return self.origin != "infinite"

    def __str__(self) -> str:
        """In one sentence, for errors and reports."""
        how = f" ({self.setting})" if self.setting else ""
        where = f", column {self.column}" if self.column is not None else ""
        what = f" for {self.output!r}{where}" if self.output else ""
        off = "" if self.difference is None else f": {self.difference:.3g} off, {self.tolerance:.3g} allowed"
        sides = f"the original {self.original}{what}, the served form {self.served}"
        row = f"{_ROW}{self.inputs}" if self.inputs else ""
        return f"to row {self.row} of the {self.origin} rows{how} {sides}{off}{row}"


def row_in(text: str) -> str:
    """The row of the first counterexample in an error's text, as JSON; empty if it has none, or one cut short."""
    _, found, rest = text.partition(_ROW)
    try:
        row, _ = json.JSONDecoder().raw_decode(rest) if found else ({}, 0)
    except (ValueError, RecursionError):
        return ""
    return json.dumps(row, ensure_ascii=False) if row and isinstance(row, dict) else ""


class ColumnDifference(Record):
    """The column that comes closest to its tolerance, or exceeds it most; both numbers are those of its worst row."""

    output: str
    column: int
    difference: float
    tolerance: float


class RowsAsked(Record):
    """How many rows of an origin, such as `validation`, were asked."""

    origin: str
    rows: int


class SettingAsked(Record):
    """A way to ask, and how many rows were answered rightly in it; all of them, or there is a counterexample."""

    name: str
    rows: int


class OfferedGraph(Record):
    """A graph that may be the model: `model.onnx` in this folder of what the conversion wrote, and notes about it."""

    name: FormName
    folder: Literal["model", "double"]
    signature: Signature
    notes: tuple[str, ...] = ()


class Form(Record):
    """A form in which a version could be served: a graph, exact trees, or its own library in Python.

    `dropped` says why it is not served, with the counterexample if there is one; empty: it is. `guarded` says which
    values it takes, for people: others are refused in front of it.
    """

    name: FormName
    dropped: str = ""
    guarded: str = ""

    @property
    def reason(self) -> str:
        """Why it was dropped, for a sentence: converters can be wordy."""
        text = self.dropped.rstrip(".")
        return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def served_by(forms: Sequence[Form]) -> str:
    """Which of the forms that were tried serves, and why none before it does; empty if the first one does."""
    served = " and ".join(form.name for form in forms if not form.dropped)
    before = itertools.takewhile(lambda form: form.dropped, forms)
    dropped = "; ".join(f"{form.name} was dropped: {form.reason}" for form in before)
    return f"Served by: {served}, because {dropped}." if served and dropped else ""


def guarded_by(forms: Sequence[Form]) -> str:
    """Which values are taken, if others are refused in front of the form that serves."""
    guarded = next((form.guarded for form in forms if form.guarded and not form.dropped), "")
    return f"Guarded: other values than these get an error: {guarded}." if guarded else ""


class ServedProof(Record):
    """What was asked of the packaged server, by up to `clients` at once, before it was promoted: it differed nowhere.

    `worst` is the column that came closest to its tolerance; None for a lossy precision, whose answers have a score.
    The questions had `budget_s`, and took `seconds`, with the start of the server. `dropped` tells of packages that
    were preferred and answered differently: which, and their first difference.
    """

    asked: tuple[RowsAsked, ...]
    settings: tuple[SettingAsked, ...]
    clients: int
    worst: ColumnDifference | None = None
    left_out: tuple[str, ...] = ()
    budget_s: float = 3.0
    seconds: float = volatile(0.0)
    dropped: tuple[str, ...] = ()

    def __str__(self) -> str:
        """In one sentence, for checks, reports and the status."""
        ways = ", ".join(f"{each.name} ({each.rows})" for each in self.settings)
        off = ""
        if worst := self.worst:
            off = f"; worst column {worst.column} of {worst.output}: {worst.difference:.3g} off, "
            off += f"{worst.tolerance:.3g} allowed"
        late = f"; left out: {', '.join(self.left_out)}" if self.left_out else ""
        before = "".join(f"; dropped: {each}" for each in self.dropped)
        return f"{sum(each.rows for each in self.asked)} rows, {self.clients} clients: {ways}{off}{late}{before}"


class Proof(Record):
    """What was asked of the original and of what is served, where they agree, and what was not asked.

    `batches` says whether a row's answer is the same among any neighbours. `refused` is how many made rows the original
    refuses; `guards` are in front of what is served, and refuse such rows, too. `unrefused` is one that neither they
    refuse nor what is behind them.
    """

    asked: tuple[RowsAsked, ...]
    settings: tuple[SettingAsked, ...]
    worst: ColumnDifference | None = None
    batches: bool = True
    left_out: tuple[str, ...] = ()
    guards: tuple[Guard, ...] = ()
    refused: int = 0
    unrefused: Counterexample | None = None
