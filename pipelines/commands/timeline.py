"""A release's timeline on a terminal."""

from rich.table import Table
from rich.text import Text

from shiplift.runtime.base.text import printable
from shiplift.runtime.gates.timeline import Bar, span_s, timeline
from shiplift.runtime.records.release import ReleaseReport

_WIDTH = 32


def chart(report: ReleaseReport) -> Table:
    """A row for each stage: when it began after the request, how long it took, and what it waited for."""
    bars = timeline(report)
    span = span_s(bars)
    table = Table("stage", "begins", "seconds", "", "waited for", box=None, padding=(0, 3, 0, 0), header_style="dim")
    for bar in bars:
        table.add_row(
            Text(printable(bar.title)),
            Text(f"{bar.begins_s:.2f}", justify="right"),
            Text(f"{bar.seconds:.2f}", justify="right"),
            Text(_line(bar, span), style="blue"),
            Text(_waited(bar), style="dim"),
        )
    return table


def _line(bar: Bar, span: float) -> str:
    begin = min(_WIDTH - 1, int(bar.begins_s / span * _WIDTH))
    width = max(1, round(bar.seconds / span * _WIDTH))
    return " " * begin + "━" * min(width, _WIDTH - begin)


def _waited(bar: Bar) -> str:
    more = f", then {bar.waited_s:.2f} s" if bar.waited_s else ""
    return f"{printable(bar.after)}{more}"
