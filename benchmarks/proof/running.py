"""One model after the other: exported as a release does it, its forms asked fresh rows, and its export sabotaged."""

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.proof.asking import Judged, judged, size, tensors, truth
from benchmarks.proof.case import Case, Form, Logged
from benchmarks.proof.exporting import Outcome, Workshop
from benchmarks.proof.results import Outcome as Ending
from benchmarks.proof.results import Result, Sabotage
from benchmarks.proof.sabotaging import sabotaged
from benchmarks.proof.serving_forms import forms_of
from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.records.proof import served_by

SEED = 977_231  # of fresh rows: the export's is another
_FEW = 500  # fresh rows that show whether a sabotage changes answers
_SHOWN = 600


def exported(case: Case, *, sabotage: bool) -> Iterator[Result | Sabotage]:
    """Exports a case and asks what would serve fresh rows; then, with `sabotage`, sabotages its export."""
    with TemporaryDirectory(prefix="proof-case-") as name:
        folder, workshop = Path(name), Workshop(home=Path(name) / "home")
        (folder / "built").mkdir()
        workshop.home.mkdir()
        try:
            logged = case.build(folder / "built")
            outcome = workshop.export(case, logged, folder / "model")
            result, version = _judged(case, logged, workshop, outcome, folder), outcome.exported
        except Exception as error:  # a case must not end the others
            result, version = failed(case, error), None
        yield result
        if sabotage and version is not None and outcome.proving and result.outcome == "right":
            fresh = tensors(logged.rows(_FEW, SEED))
            yield from sabotaged(case.name, version, outcome.proving, folder / "sabotage", fresh)


def _judged(case: Case, logged: Logged, workshop: Workshop, outcome: Outcome, folder: Path) -> Result:
    seconds = {"seconds": round(outcome.seconds, 2), "proof_seconds": round(outcome.proof_seconds, 2)}
    if outcome.exported is None:
        refused = isinstance(outcome.error, ExportFailed)
        end = ended(case, "refused" if refused else "failed", reason=_told(outcome.error))
        return end.model_copy(update=seconds)
    return _asked(case, logged, workshop, outcome.exported, folder).model_copy(update=seconds)


def _asked(case: Case, logged: Logged, workshop: Workshop, version: Exported, folder: Path) -> Result:
    """Asks every form the same fresh rows."""
    import mlflow

    question = logged.rows(case.fresh, SEED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = None if logged.original else mlflow.pyfunc.load_model(str(folder / "model"))
        right = truth(case, logged, model, question)
    asked = tensors(question)
    with forms_of(workshop, version, Path(sys.prefix), folder / "forms") as forms:
        seen = [judged(right, form.ask, asked, form.first, batches=form.batches, seed=SEED) for form in forms]
        names, batches = tuple(form.form for form in forms), all(form.batches for form in forms)
    reason = served_by(version.forms) or "; ".join(version.notes)
    return told(case, seen, names, batches=batches, reason=reason, rows=size(question))


def told(case: Case, seen: list[Judged], forms: tuple[Form, ...], *, batches: bool, reason: str, rows: int) -> Result:
    """What fresh rows showed of each form, as a result."""
    wrong, unrefused = max(each.wrong for each in seen), max(each.unrefused for each in seen)
    lesser = not set(forms) & set(case.forms) or (case.batches and not batches)
    ending: Ending = "wrong" if wrong or unrefused else "demoted" if lesser else "right"
    return ended(
        case,
        ending,
        forms=forms,
        batches=batches,
        rows=rows,
        wrong=wrong,
        unrefused=unrefused,
        first=next((each.first for each in seen if each.first), "")[:_SHOWN],
        reason=reason[:_SHOWN],
    )


def ended(case: Case, ending: Ending, **fields: Any) -> Result:
    """A result, which is good if the case's part allows such an end."""
    allowed: set[Ending] = {"right", "refused", "demoted"} if case.part == "a" else {"right"}
    return Result(
        name=case.name,
        part=case.part,
        flavor=case.flavor,
        depth="exported",
        outcome=ending,
        good=ending in allowed,
        **fields,
    )


def failed(case: Case, error: Exception) -> Result:
    """The result of a case that ended otherwise than any case should."""
    return ended(case, "failed", reason=_told(error))


def _told(error: Exception | None) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:_SHOWN]
