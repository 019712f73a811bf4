"""The figures of releases that the page compares over versions: p99 and score, as the gates judged them."""

from collections.abc import Iterable
from dataclasses import dataclass

from shiplift.runtime.records.release import ReleaseReport
from shiplift.runtime.records.verdict import Check


@dataclass(frozen=True, kw_only=True)
class Figures:
    """A version's p99 in ms, and its score; None for what was not judged. `metric` says what the score is."""

    version: int
    p99_ms: float | None = None
    score: float | None = None
    metric: str = ""


def figures_of(reports: Iterable[ReleaseReport]) -> dict[int, Figures]:
    """The figures by version, in ascending order."""
    return {each.version: _figures(each) for each in sorted(reports, key=lambda each: each.version)}


def _figures(report: ReleaseReport) -> Figures:
    p99 = next((check for check in report.checks if check.name == "p99"), None)
    score = next((check for check in report.checks if _scores(check)), None)
    return Figures(
        version=report.version,
        p99_ms=p99.measured if p99 else None,
        score=score.measured if score else None,
        metric=score.name if score else "",
    )


def _scores(check: Check) -> bool:
    return bool(check.name) and check.unit == check.name  # a score has no other unit than its metric
