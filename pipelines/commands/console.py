"""Output for people: a live view of a release (plain lines without a terminal), and tables.

Results go to stdout and everything else to stderr, so that `--json` can be piped.
"""

import time
from collections.abc import Iterator
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from shiplift.pipelines.engines.answers import Prediction
from shiplift.pipelines.engines.pace import Pace, in_words, pace_of
from shiplift.pipelines.engines.protocol import Engine
from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.base.text import printable
from shiplift.runtime.records.release import Event, ReleaseReport
from shiplift.runtime.records.verdict import Check

_STYLES = {
    "ok": "green",
    "pass": "green",
    "promoted": "green",
    "not admitted": "red",
    "refused": "red",
    "fail": "red",
    "failed": "red",
    "inconclusive": "yellow",
    "waiting": "yellow",
    "waiting for approval": "yellow",
    "rejected": "red",
    "aborted": "yellow",
    "cancelled": "yellow",
    "skipped": "dim",
}
_MARKS = {"ok": "✓", "skipped": "-"}


class SafeConsole(Console):
    """A console that shows control characters in names and messages as text: they can't affect the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """The segments of a renderable, with their text escaped; rich's own controls and styles stay."""
        for segment in super().render(renderable, options):
            text = segment.text
            safe = text if segment.control else printable(text, lines=True)
            yield segment if safe == text else Segment(safe, segment.style)


stderr = SafeConsole(stderr=True, highlight=False)
stdout = SafeConsole(highlight=False, soft_wrap=True)


def echo(text: str, *, err: bool = False) -> None:
    """Prints plain text, with control characters escaped in the same way."""
    typer.echo(printable(text, lines=True), err=err)


def watch(events: Iterator[Event | None], *, quiet: bool = False, pace: Pace | None = None) -> None:
    """Shows the events of a release until they end; None means that nothing happened for a moment.

    `pace` is that of earlier releases, from which the end is estimated.
    """
    view = _View(pace or Pace())
    if quiet or not stderr.is_terminal:
        for event in events:
            if event and not quiet:
                _line(event)
                if event.kind == "started" and (left := view.pace.left(event.stage, event.target, 0.0)):
                    stderr.print(f"{'':<24} {in_words(left)} left, as earlier releases took", markup=False)
    else:
        with Live(view, console=stderr, refresh_per_second=10, transient=True):
            for event in events:
                if event:
                    view.add(event)
        stderr.print(view.table(finished=True))


def follow(engine: Engine, name: str, *, model: str = "", quiet: bool = False) -> ReleaseReport:
    """Shows a release until it ends, and returns its report. With a `model`, its end is estimated from earlier ones.

    Raises:
        StackDown, NotFound: the release can't end, or left no report.
    """
    watch(engine.events(name), quiet=quiet, pace=_pace(engine, model) if model and not quiet else None)
    return engine.result(name)


def _pace(engine: Engine, model: str) -> Pace:
    try:
        return pace_of(engine.reports(model))
    except ShipliftError:  # an estimate is no reason to fail
        return Pace()


def _line(event: Event) -> None:
    where = f"{event.stage} {event.target}".strip()
    if event.kind == "finished":
        note = " (cached)" if event.cached else ""
        message = f": {event.message}" if event.message else ""
        stderr.print(f"{where:<24} {event.outcome:<12} {event.seconds:6.2f} s{note}{message}", markup=False)
    elif event.kind == "progress":
        stderr.print(f"{where:<24} ... {event.message}", markup=False)


class _View:
    """The live table: one row per stage, with the progress of the running one."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self._rows: dict[tuple[str, str], Event] = {}
        self._since: dict[tuple[str, str], float] = {}

    def add(self, event: Event) -> None:
        """Adds an event."""
        key = (event.stage, event.target)
        if event.kind == "started":
            self._since[key] = time.monotonic()
        self._rows[key] = event

    def __rich__(self) -> Group:
        return Group(self.table(finished=False), *self._left())

    def _left(self) -> list[Text]:
        """How long it will still take, if earlier releases tell."""
        running = [key for key, event in self._rows.items() if event.kind != "finished"]
        if not running:
            return []
        stage, target = running[-1]
        left = self.pace.left(stage, target, time.monotonic() - self._since.get((stage, target), time.monotonic()))
        return [] if left is None else [Text(f"{in_words(left)} left, as earlier releases took", style="dim")]

    def table(self, *, finished: bool) -> Table:
        """The rows so far."""
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        for key, event in self._rows.items():
            if event.kind == "finished":
                mark: Any = Text(_MARKS.get(event.outcome, "✗"), style=_STYLES.get(event.outcome, ""))
                seconds, note = f"{event.seconds:.2f} s", "cached" if event.cached else event.message
            else:
                mark = Text("·") if finished else Spinner("dots")
                seconds = f"{time.monotonic() - self._since.get(key, time.monotonic()):.1f} s"
                note = event.message + (f"  {event.done:.0%}" if event.done is not None else "")
            table.add_row(mark, " ".join(key).strip(), Text(seconds, justify="right"), Text(note, style="dim"))
        return table


def show_report(report: ReleaseReport) -> None:
    """Prints a release's verdict, checks, endpoint and report page on stdout."""
    stdout.print()
    style = _STYLES.get(report.heading.lower(), "")
    stdout.print(Text.assemble((report.heading, f"bold {style}"), f"  {report.model} version {report.version}"))
    stdout.print(report.reason, markup=False)
    for do in report.what_to_do:
        stdout.print(f"what to do about {do}", markup=False)
    for note in filter(None, (report.retired, report.targets_note, report.served_by, report.guarded_by)):
        stdout.print(f"note: {note}", markup=False)
    if report.checks:
        stdout.print(gates(report.checks))
    if report.endpoint:
        stdout.print(f"http  {report.endpoint.http}\ngrpc  {report.endpoint.grpc}")
    if report.report:
        stdout.print(f"page  {report.report}", markup=False)


def show_answer(answer: Prediction) -> None:
    """Prints production's answer on stdout."""
    echo(f"{answer.model} version {answer.version}")
    for name, value in answer.outputs.items():
        echo(f"{name}: {value}")


def style(word: str) -> str:
    """The colour of an outcome or a verdict."""
    return _STYLES.get(word, "")


def gates(checks: tuple[Check, ...]) -> Table:
    """The table of a verdict's checks."""
    table = Table(
        "check", "verdict", "measured", "interval", "limit", "unit", box=None, padding=(0, 3, 0, 0), header_style="dim"
    )
    for check in checks:
        verdict = Text(str(check.verdict), style=style(str(check.verdict)))
        if check.severity == "warn":
            verdict.append(" (warning)", style="dim")
        interval = f"{number(check.low)} to {number(check.high)}" if check.interval else ""
        table.add_row(check.name, verdict, number(check.measured), interval, number(check.limit), check.unit)
    return table


def number(value: float | None) -> str:
    """A number formatted for people."""
    return "-" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
