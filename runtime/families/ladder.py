"""What families share when they build candidates in a sandbox: the sandbox's order, and the ladder as a record."""

from typing import Any

from shiplift.runtime.confinement.workplace import Workplace
from shiplift.runtime.families.work import Quantizing
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.precision import AS_EXPORTED, Built, Candidate, Candidates, Ladder
from shiplift.runtime.spec.model import OwnMetric


def logged(work: Quantizing[Any], place: Workplace, name: str) -> list[str] | None:
    """Fetches a dataset as `validation` or `calibration`; returns its file and logged name, None if there is none."""
    file: Artifact | None = getattr(work.datasets, name)
    return [str(work.store.fetch(file, place.folder / name)), getattr(work.datasets, f"{name}_name")] if file else None


def metric_file(work: Quantizing[Any], place: Workplace) -> str:
    """The file of the author's own metric, under its logged name; empty if there is none."""
    if work.datasets.metric is None or not isinstance(work.data.metric, OwnMetric):
        return ""
    return str(work.store.fetch(work.datasets.metric, place.folder / work.data.metric.python))


def recorded(work: Quantizing[Any], place: Workplace, result: dict[str, Any]) -> Candidates:
    """Records what the sandbox built and scored, and stores its models."""
    ladder, validation = Ladder.model_validate(result), work.datasets.validation
    return Candidates(
        target=work.target.name,
        metric=ladder.metric,
        constant_score=ladder.constant_score,
        validation=validation.sha256 if validation else "",
        candidates=tuple(_stored(work, place, built) for built in ladder.candidates),
        jpegs=ladder.jpegs,
        notes=ladder.notes,
    )


def _stored(work: Quantizing[Any], place: Workplace, built: Built) -> Candidate:
    fields = {name: getattr(built, name) for name in Candidate.model_fields}
    model = work.exported.model if built.folder == AS_EXPORTED else None
    if built.folder and model is None:
        model = work.store.put_tree(place.sandbox.work / built.folder)
    return Candidate(**fields | {"model": model})
