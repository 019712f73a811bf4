"""What a person sees: a release live on a terminal (lines where there is none), and tables. Results go to stdout,

everything else to stderr, so that `--json` can be piped.
"""

import time
from collections.abc import Iterator
from typing import Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from shiplift.pipelines.engines.answers import Answer
from shiplift.pipelines.engines.protocol import Releasing
from shiplift.runtime.records.release import Event, ReleaseReport
from shiplift.runtime.records.verdict import Check

_STYLES = {
    "ok": "green",
    "pass": "green",
    "refused": "red",
    "fail": "red",
    "failed": "red",
    "inconclusive": "yellow",
    "cancelled": "yellow",
    "skipped": "dim",
}
_MARKS = {"ok": "✓", "skipped": "-"}

stderr = Console(stderr=True, highlight=False)
stdout = Console(highlight=False, soft_wrap=True)


def watch(events: Iterator[Event | None], *, quiet: bool = False) -> None:
    """Shows what happens in a release until there is nothing more; None is a pause."""
    view = _View()
    if quiet or not stderr.is_terminal:
        for event in events:
            if event and not quiet:
                _line(event)
    else:
        with Live(view, console=stderr, refresh_per_second=10, transient=True):
            for event in events:
                if event:
                    view.take(event)
        stderr.print(view.table(finished=True))


def follow(engine: Releasing, name: str, *, quiet: bool = False) -> ReleaseReport:
    """Shows a release until it has ended, and gives its report.

    Raises:
        StackDown, NotFound: it can't end, or left no report.
    """
    watch(engine.events(name), quiet=quiet)
    return engine.result(name)


def _line(event: Event) -> None:
    where = f"{event.stage} {event.target}".strip()
    if event.kind == "finished":
        note = " (cached)" if event.cached else ""
        message = f": {event.message}" if event.message else ""
        stderr.print(f"{where:<24} {event.outcome:<12} {event.seconds:6.2f} s{note}{message}", markup=False)
    elif event.kind == "progress":
        stderr.print(f"{where:<24} ... {event.message}", markup=False)


class _View:
    """The live table: one row a stage, the running one with its progress."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], Event] = {}
        self._since: dict[tuple[str, str], float] = {}

    def take(self, event: Event) -> None:
        """Takes an event in."""
        at = (event.stage, event.target)
        if event.kind == "started":
            self._since[at] = time.monotonic()
        self._rows[at] = event

    def __rich__(self) -> Group:
        return Group(self.table(finished=False))

    def table(self, *, finished: bool) -> Table:
        """The rows so far."""
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        for at, event in self._rows.items():
            if event.kind == "finished":
                mark: Any = Text(_MARKS.get(event.outcome, "✗"), style=_STYLES.get(event.outcome, ""))
                seconds, note = f"{event.seconds:.2f} s", "cached" if event.cached else event.message
            else:
                mark = Text("·") if finished else Spinner("dots")
                seconds = f"{time.monotonic() - self._since.get(at, time.monotonic()):.1f} s"
                note = event.message + (f"  {event.done:.0%}" if event.done is not None else "")
            table.add_row(mark, " ".join(at).strip(), Text(seconds, justify="right"), Text(note, style="dim"))
        return table


def show_report(report: ReleaseReport) -> None:
    """A release's verdict, gates, endpoint and page, on stdout."""
    stdout.print()
    style = _STYLES.get(str(report.verdict), "")
    stdout.print(
        Text.assemble((str(report.verdict).upper(), f"bold {style}"), f"  {report.model} version {report.version}")
    )
    stdout.print(report.reason, markup=False)
    if report.targets_note:
        stdout.print(f"note: {report.targets_note}", markup=False)
    if report.checks:
        stdout.print(gates(report.checks))
    if report.endpoint:
        stdout.print(f"http  {report.endpoint.http}\ngrpc  {report.endpoint.grpc}")
    if report.report:
        stdout.print(f"page  {report.report}", markup=False)


def show_answer(answer: Answer) -> None:
    """What production answered, on stdout."""
    typer.echo(f"{answer.model} version {answer.version}")
    for name, value in answer.outputs.items():
        typer.echo(f"{name}: {value}")


def style(word: str) -> str:
    """The colour of an outcome or a verdict."""
    return _STYLES.get(word, "")


def gates(checks: tuple[Check, ...]) -> Table:
    """The table of gates."""
    table = Table("check", "verdict", "measured", "limit", "unit", box=None, padding=(0, 3, 0, 0), header_style="dim")
    for check in checks:
        verdict = Text(str(check.verdict), style=style(str(check.verdict)))
        if check.severity == "warn":
            verdict.append(" (warning)", style="dim")
        table.add_row(check.name, verdict, number(check.measured), number(check.limit), check.unit)
    return table


def number(value: float | None) -> str:
    """A number as people write it."""
    return "-" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
