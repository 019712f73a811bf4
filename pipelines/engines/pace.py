"""How long a release will still take, from how long earlier releases of the same model took. Pure: it sees reports."""

from collections.abc import Iterable
from dataclasses import dataclass

from shiplift.runtime.records.release import ReleaseReport


@dataclass(frozen=True)
class Pace:
    """The stages of an earlier release, in order, with the seconds that each took when it last ran uncached."""

    stages: tuple[tuple[str, str, float], ...] = ()

    def left(self, stage: str, target: str, elapsed_s: float) -> float | None:
        """Seconds until the end of a release that has been in a stage for `elapsed_s`; None if there is no telling.

        A stage that takes longer than before says nothing of those that follow: it counts as about to end.
        """
        names = [(name, place) for name, place, _ in self.stages]
        at = next((index for index, name in enumerate(names) if name == (stage, target)), None)
        at = next((index for index, name in enumerate(names) if name[0] == stage), at) if at is None else at
        if at is None:
            return None
        seconds = [took for _, _, took in self.stages]
        return max(0.0, seconds[at] - elapsed_s) + sum(seconds[at + 1 :])


def pace_of(reports: Iterable[ReleaseReport]) -> Pace:
    """The pace of a model whose releases ended with these reports; an empty one if none of them was promoted.

    Only a promoted release has every stage. Of a stage that was cached there, an older release knows the time.
    """
    newest_first = sorted(reports, key=lambda report: -report.version)
    whole = next((report for report in newest_first if report.alias), None)
    if whole is None:
        return Pace()
    took: dict[tuple[str, str], float] = {}
    for report in newest_first:
        for run in report.stages:
            if not run.cached and run.outcome == "ok":
                took.setdefault((run.name, run.target), run.seconds)
    return Pace(tuple((run.name, run.target, took.get((run.name, run.target), run.seconds)) for run in whole.stages))


def in_words(seconds: float) -> str:
    """About how long, for people."""
    if seconds < 90:
        return f"about {max(5, round(seconds / 5) * 5)} s"
    return f"about {round(seconds / 60)} min"
