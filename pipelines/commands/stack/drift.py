"""`shiplift drift`."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Engine, Json, Model, Namespace

if TYPE_CHECKING:
    from shiplift.runtime.records.drift import ColumnDrift, DriftReport

_STYLES = {"drifted": "red", "steady": "green"}


def drift(
    model: Model,
    now: Annotated[bool, typer.Option("--now", help="Compare now, instead of showing the last result.")] = False,
    engine: Engine = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Show how a model's requests and answers differ from its validation data, by column.

    Example: `shiplift drift digits`
    """
    edge.print_result(edge.engine(engine, namespace).data_drift(model, now=now), _show, as_json=as_json)


def _show(report: "DriftReport") -> None:
    from rich.table import Table
    from rich.text import Text

    from shiplift.pipelines.commands import console
    from shiplift.runtime.base.durations import in_short
    from shiplift.runtime.base.text import printable

    if report.columns:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for title in ("column", "state", "PSI", "test", "p", "requests", "missing", "note"):
            table.add_column(title, overflow="fold")
        for each in sorted(report.columns, key=_order):
            state = Text(each.state, style=_STYLES.get(each.state, "dim"))
            figures = [f"{each.psi:.3f}", each.test, f"{each.p:.2g}"] if each.state in _STYLES else ["", each.test, ""]
            missing = f"{each.missing_before:.1%} → {each.missing:.1%}" if each.missing or each.missing_before else ""
            note = Text(printable(each.note))
            table.add_row(Text(printable(each.column)), state, *figures, str(each.requests), missing, note)
        console.stdout.print(table)
    at = datetime.fromtimestamp(report.at, tz=UTC).astimezone()
    rows = f"{report.rows} rows in {report.requests} requests of the last {in_short(report.window_s)}"
    console.stdout.print(f"{rows}, against {report.reference_rows} rows of validation data, at {at:%Y-%m-%d %H:%M:%S}")
    style = "red" if report.drifted else "yellow" if report.problem else ""
    console.stdout.print(Text(printable(f"version {report.version}: {report.sentence}", limit=1000), style=style))


def _order(each: "ColumnDrift") -> tuple[int, float]:
    return ("drifted", "steady", "too few", "not compared").index(each.state), -each.psi
