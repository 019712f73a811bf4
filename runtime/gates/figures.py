"""What a release measured, as metrics of the registry, whose charts compare versions.

MLflow's charts make a section of what is before a key's last `/`: one for the form that serves, one for each other
form, one for the load test, whose steps are concurrencies, and one for slices of the validation set.
"""

import math
from collections.abc import Iterator

from shiplift.runtime.gates.policy import operating_point
from shiplift.runtime.gates.report import Story
from shiplift.runtime.records.figure import Figure
from shiplift.runtime.records.measurement import LoadReport, Trial, Tuned
from shiplift.runtime.records.precision import Candidate, Candidates
from shiplift.runtime.records.release import ReleaseReport

_SLICES = 50
_CURVE = ("p50_ms", "p95_ms", "p99_ms", "throughput_per_s")


def figures_of(report: ReleaseReport, story: Story) -> tuple[Figure, ...]:
    """Each measured number once: checks, what serves under load, every form that was tried, slices."""
    found = [*_checks(report), *_served(story), *_forms(story), *_load(story), *_slices(story)]
    by_key = {(each.section, each.name, each.step): each for each in found if math.isfinite(each.value)}
    return tuple(by_key.values())


def _checks(report: ReleaseReport) -> Iterator[Figure]:
    for check in report.checks:
        if check.measured is not None:
            yield Figure(name=check.name.replace(" ", "_"), value=check.measured)


def _served(story: Story) -> Iterator[Figure]:
    """The form that serves, at the load at which it was judged."""
    best = story.tuned.best if story.tuned else None
    if story.load_report and story.load_report.points and story.admitted:
        point = operating_point(story.load_report, story.admitted.slo)
        yield from (Figure(section="served", name=name, value=getattr(point, name)) for name in _CURVE)
        yield Figure(section="served", name="concurrency", value=point.concurrency)
    memory = story.load_report.memory_mb if story.load_report else None
    scored = _candidate(story.candidates, best) if best else None
    for name, value in (
        ("memory_mb", memory),
        ("score", scored.score if scored else None),
        ("cost_per_million", best.cost_per_million if best else None),
    ):
        if value is not None:
            yield Figure(section="served", name=name, value=value)


def _forms(story: Story) -> Iterator[Figure]:
    """Every form: its score, and how its best configuration did in the search, which measures no p95."""
    for candidate in story.candidates.candidates if story.candidates else ():
        if candidate.score is not None:
            yield Figure(section=f"form {candidate.described}", name="score", value=candidate.score)
    for trial in _best_trials(story.tuned):
        for name in ("p50_ms", "p99_ms", "throughput_per_s", "memory_mb", "cost_per_million"):
            if (value := getattr(trial, name)) is not None:
                yield Figure(section=f"form {trial.described}", name=name, value=value)


def _best_trials(tuned: Tuned | None) -> list[Trial]:
    """The best trial of each form: within its limits if one is, and of those the one with the highest throughput."""
    best: dict[str, Trial] = {}
    for trial in tuned.trials if tuned else ():
        known = best.get(trial.variant)
        if not trial.error and (known is None or _rank(trial) > _rank(known)):
            best[trial.variant] = trial
    if tuned:
        best[tuned.best.variant] = tuned.best
    return list(best.values())


def _rank(trial: Trial) -> tuple[bool, float]:
    return trial.within_slo, trial.throughput_per_s


def _load(story: Story) -> Iterator[Figure]:
    """The load test's curves: a step is a concurrency."""
    report: LoadReport | None = story.load_report
    for point in report.points if report else ():
        for name in _CURVE:
            value = getattr(point, name)
            yield Figure(section="load by concurrency", name=name, value=value, step=point.concurrency)


def _slices(story: Story) -> Iterator[Figure]:
    scored = _candidate(story.candidates, story.tuned.best) if story.tuned else None
    for each in (scored.slices if scored else ())[:_SLICES]:
        yield Figure(section="score by slice", name=each.name, value=each.score)


def _candidate(candidates: Candidates | None, trial: Trial) -> Candidate | None:
    known = candidates.candidates if candidates else ()
    return next((each for each in known if each.variant == trial.variant), None)
