"""Ended releases as a table, for terminals and for notebooks. What authors wrote is shown as text."""

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from shiplift.runtime.base.text import printable
from shiplift.runtime.records.release import ReleaseReport

_COLUMNS = ("model", "version", "outcome", "p99 ms", "inferences/s", "MiB", "why")
_CHECKS = ("p99", "throughput", "memory")
_TEMPLATE = """<table>
<thead><tr>{% for column in columns %}<th>{{ column }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in rows %}<tr>{% for cell in row %}<td style="text-align: left">{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody>
</table>"""


def rich_table(reports: Iterable[ReleaseReport]) -> Table:
    """The table for terminals."""
    table = Table(*_COLUMNS, box=None, padding=(0, 2, 0, 0), header_style="dim")
    for report in reports:
        table.add_row(*(Text(cell) for cell in _row(report)))
    return table


def html_table(reports: Iterable[ReleaseReport]) -> str:
    """The table for notebooks."""
    from shiplift.runtime.gates.report import environment  # noqa: PLC0415 - only notebooks need it

    return environment().from_string(_TEMPLATE).render(columns=_COLUMNS, rows=[_row(report) for report in reports])


def _row(report: ReleaseReport) -> tuple[str, ...]:
    measured = {check.name: check.measured for check in report.checks}
    figures = (measured.get(name) for name in _CHECKS)
    shown = ("-" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" for value in figures)
    why = "" if report.alias else printable(" ".join(report.reason.split()), limit=200)
    return printable(report.model), str(report.version), report.outcome, *shown, why
