"""The content of `benchmarks/results/proof.json`, written after each case, so that a run can resume."""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field

from benchmarks.proof.case import Form, Part
from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.records.base import Record

RESULTS = Path(__file__).parents[1] / "results" / "proof.json"
METHOD = {
    "a": "models whose answers went wrong in public bug reports, and relatives: right is served as mlflow.pyfunc"
    " answers, or refused",
    "b": "a right export is sabotaged in its files, and the half of the export that proves runs again: caught is any"
    " error, or that the sabotaged form is dropped",
    "c": "right models: served as the graph, or as the table's other forms, and in batches unless the table says not",
    "rows": "fresh rows that the proof did not ask, each asked alone and in mixed batches of 1 to 16 (exported) or"
    " alone and by 16 clients (released); wrong: labels that differ, and floats beyond the proof's tolerance",
    "unrefused": "rows that are answered, though the original raises",
    "depth": "exported: both halves of the export in one process, and its files asked through ONNX Runtime, treelite or"
    " the Python host; released: a release with a quick spec on a stack of its own, and production asked",
    "seconds": "of the export, or from registration to the end of the release",
    "proof_seconds": "the part of it in which the proof ran",
}
Depth = Literal["exported", "released"]
DEPTHS: tuple[Depth, ...] = get_args(Depth)
Outcome = Literal["right", "refused", "wrong", "demoted", "failed"]


class Result(Record):
    """How a model ended: `wrong` is served wrongly, `demoted` served as a lesser form than it could be.

    `failed` is any end that is neither a promotion nor a refusal. `good` is what the case's part allows. `forms` are
    those that would serve, `first` tells of the first row that was answered wrongly.
    """

    name: str
    part: Part
    flavor: str
    depth: Depth
    outcome: Outcome
    good: bool
    forms: tuple[Form, ...] = ()
    batches: bool = True
    rows: int = 0
    wrong: int = 0
    unrefused: int = 0
    first: str = ""
    reason: str = ""
    seconds: float = 0.0
    proof_seconds: float = 0.0


class Sabotage(Record):
    """What was done to a model's export, and whether the proof caught it; `by` is the proof's own message."""

    name: str
    model: str
    depth: Depth
    caught: bool
    what: str
    by: str = ""


class Results(Record):
    """The machine, how it was measured, the models of parts a and c, and the sabotages of part b.

    `notes` say what a reader has to know of this run. `not_run` are models without a result, by depth.
    """

    machine: dict[str, Any]
    method: dict[str, str] = METHOD
    date: str = ""
    notes: tuple[str, ...] = ()
    not_run: dict[Depth, tuple[str, ...]] = Field(default_factory=dict)
    cases: tuple[Result, ...] = ()
    sabotages: tuple[Sabotage, ...] = ()

    def including(self, *news: Result | Sabotage) -> "Results":
        """The results with the newest of a case or sabotage in each depth."""
        new = {(type(each), each.name, each.depth) for each in news}

        def with_news(old: tuple[Any, ...], kind: type) -> tuple[Any, ...]:
            kept = [each for each in old if (kind, each.name, each.depth) not in new]
            return tuple(sorted([*kept, *(each for each in news if isinstance(each, kind))], key=_order))

        return self.model_copy(
            update={"cases": with_news(self.cases, Result), "sabotages": with_news(self.sabotages, Sabotage)}
        )

    def finished(self, names: Iterable[str]) -> "Results":
        """The results with today's date, and which of these models they lack."""
        done = {depth: {each.name for each in self.cases if each.depth == depth} for depth in DEPTHS}
        lacking = {depth: tuple(name for name in names if name not in done[depth]) for depth in DEPTHS}
        return self.model_copy(update={"date": datetime.now(UTC).date().isoformat(), "not_run": lacking})


def _order(entry: Result | Sabotage) -> tuple[str, ...]:
    return (entry.depth, getattr(entry, "part", ""), entry.name)


def read(file: Path) -> Results | None:
    """The results of an earlier run; None without one."""
    return Results.model_validate_json(file.read_text()) if file.is_file() else None


def write(file: Path, results: Results) -> None:
    """Replaces the results."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, results.model_dump_json(indent=1) + "\n")
