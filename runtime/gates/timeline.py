"""When each stage of a release ran, and what it waited for: the chart in reports and on the terminal."""

from collections.abc import Iterator
from dataclasses import dataclass

from shiplift.runtime.records.release import ReleaseReport, StagePart, StageRun

QUEUE, REPORT = "queue", "report"
_SHORTEST_S = 0.005  # a shorter wait is none


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A stage on the timeline. Times are in seconds after the release was requested.

    It could begin when stage `after` had ended (empty: it is the first), and then waited `waited_s`: for its process or
    pod, its sandbox, or the registry. `run` is None for what is not a stage: the queue, and writing the report.
    """

    name: str
    begins_s: float
    ends_s: float
    after: str = ""
    waited_s: float = 0.0
    run: StageRun | None = None

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ends_s - self.begins_s

    @property
    def parts(self) -> tuple[StagePart, ...]:
        """The parts of its stage."""
        return self.run.parts if self.run else ()

    @property
    def title(self) -> str:
        """Its name, and its target if it has one."""
        return f"{self.name} {self.run.target}" if self.run and self.run.target else self.name


def timeline(report: ReleaseReport) -> tuple[Bar, ...]:
    """The bars of a release, in the order in which they began; a stage that was skipped has none.

    A report of an earlier Shiplift does not say when its stages began: they are taken to have followed one another.
    """
    runs = [run for run in report.stages if run.outcome != "skipped"]
    if not report.requested_at or not all(run.started_at for run in runs):
        return tuple(_in_a_row(runs))
    bars: list[Bar] = []
    for run in sorted(runs, key=lambda each: each.started_at):
        begins = max(0.0, run.started_at - report.requested_at)
        bars += _queued(begins) if not bars else ()
        bars.append(_bar(run, begins, bars))
    ends = report.since_request_seconds
    if bars and ends - bars[-1].ends_s > _SHORTEST_S:
        last = max(bars, key=lambda bar: bar.ends_s)
        bars.append(Bar(name=REPORT, begins_s=last.ends_s, ends_s=ends, after=last.title))
    return tuple(bars)


def span_s(bars: tuple[Bar, ...]) -> float:
    """From the request to the end of the last bar, in seconds; never 0."""
    return max((bar.ends_s for bar in bars), default=0.0) or 1.0


def _queued(begins: float) -> Iterator[Bar]:
    if begins > _SHORTEST_S:
        yield Bar(name=QUEUE, begins_s=0.0, ends_s=begins)


def _bar(run: StageRun, begins: float, before: list[Bar]) -> Bar:
    """A stage begins after the one that ended last before it."""
    ended = [bar for bar in before if bar.ends_s <= begins + _SHORTEST_S]
    last = max(ended, key=lambda bar: bar.ends_s, default=None)
    waited = max(0.0, begins - last.ends_s) if last else 0.0
    return Bar(
        name=run.name,
        begins_s=begins,
        ends_s=begins + run.seconds,
        after=last.title if last else "",
        waited_s=waited if waited > _SHORTEST_S else 0.0,
        run=run,
    )


def _in_a_row(runs: list[StageRun]) -> Iterator[Bar]:
    elapsed, after = 0.0, ""
    for run in runs:
        bar = Bar(name=run.name, begins_s=elapsed, ends_s=elapsed + run.seconds, after=after, run=run)
        yield bar
        elapsed, after = bar.ends_s, bar.title
