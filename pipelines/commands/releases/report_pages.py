"""Pages over several releases: a comparison of two, and an index of all models."""

import contextlib
from pathlib import Path

from shiplift.pipelines.engines.protocol import Engine
from shiplift.runtime.base.errors import NotFound, ShipliftError
from shiplift.runtime.base.names import release_name
from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.gates.report import ModelSummary, render_comparison, render_index
from shiplift.runtime.records.release import ReleaseReport
from shiplift.runtime.spec.admitted import Admitted
from shiplift.runtime.spec.measurement import Slo
from shiplift.runtime.store.registry.terms import model_and_version


def comparison(engine: Engine, folder: Path, left: str, right: str) -> Path:
    """Writes a page that compares two releases, named as MODEL/VERSION, to a folder; returns its path.

    Raises:
        NotFound: a name has no version, or the version was never released.
    """
    sides = []
    for name in (left, right):
        model, version = model_and_version(name)
        if version is None:
            raise NotFound(f"{name!r} has no version", do="Write MODEL/VERSION, such as digits/3.")
        report = engine.report(model, version)
        sides.append((report, engine.story(report)))
    names = [release_name(report.model, report.version, "") for report, _ in sides]
    page = folder / f"{names[0]}-and-{names[1]}.html"
    write_atomically(page, render_comparison(sides[0], sides[1]))
    return page


def index(engine: Engine, folder: Path) -> Path:
    """Writes a page of all released models to a folder; returns its path."""
    by_model: dict[str, list[ReleaseReport]] = {}
    for report in sorted(engine.reports(), key=lambda report: (report.model, report.version)):
        by_model.setdefault(report.model, []).append(report)
    champions = engine.champions()
    summaries = tuple(_summary(engine, champions, model, tuple(reports)) for model, reports in by_model.items())
    page = folder / "index.html"
    write_atomically(page, render_index(summaries))
    return page


def _summary(
    engine: Engine, champions: dict[str, int] | None, model: str, reports: tuple[ReleaseReport, ...]
) -> ModelSummary:
    """A model's entry. If the registry is down, the champion comes from the releases' reports."""
    promoted = [report.version for report in reports if report.alias]
    champion = promoted[-1] if promoted else 0
    limits = ""
    with contextlib.suppress(ShipliftError):
        admitted = engine.history(reports[-1]).last(Admitted)
        limits = _in_words(admitted.slo) if admitted else ""
    if champions is not None:
        champion = champions.get(model, 0)
    return ModelSummary(model=model, champion=champion, limits=limits, releases=reports)


def _in_words(slo: Slo) -> str:
    limits = (
        (slo.p99_ms, "p99 within {:g} ms"),
        (slo.throughput_per_s, "{:g} inferences/s"),
        (slo.memory_mb, "{:g} MiB"),
    )
    return ", ".join(words.format(value) for value, words in limits if value is not None) or "none"
