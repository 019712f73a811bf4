"""`shiplift ask`."""

from typing import TYPE_CHECKING, Annotated

import typer

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Engine, Json, ModelVersion, Namespace

if TYPE_CHECKING:
    from shiplift.runtime.records.asked import AskedAgain


def ask(
    name: ModelVersion,
    row: Annotated[
        list[int], typer.Option(min=0, help="A row of those that the release asked; several are asked as one request.")
    ],
    form: Annotated[
        str, typer.Option(help="The form to ask, such as onnxruntime-fp32. [default: the one that serves]")
    ] = "",
    clients: Annotated[int, typer.Option(min=1, max=64, help="Ask from this many clients at once.")] = 1,
    engine: Engine = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Ask rows of a release's proof again: the original model, and what was built of it; show where they differ.

    A release that found a difference names the command that repeats it. Both run confined, and production is not
    asked. Exits with 43 if the form answers a row differently, else with 0. Example:
    `shiplift ask digits/3 --form onnxruntime-fp32 --row 12 --row 40`
    """
    model, version = edge.version_of(name)
    again = edge.engine(engine, namespace).ask(model, version, form, row, clients)
    edge.print_result(again, _show, as_json=as_json)
    if not again.same:
        from shiplift.runtime.base.errors import GoldenMismatch

        raise typer.Exit(GoldenMismatch.exit_code)


def _show(again: "AskedAgain") -> None:
    from shiplift.pipelines.commands.console import echo

    echo(f"{again.model} version {again.version}, {again.form}; the original now: {again.judge}")
    for row in again.rows:
        echo(f"row {row.row} ({row.origin}): {row.inputs or 'too long to show'}")
        shown = {
            "original, in the release": row.recorded,
            "original, now": row.original,
            "form, alone": row.served,
            "form, among others": row.among,
            "difference": row.difference,
        }
        for what, answer in shown.items():
            if answer:
                echo(f"  {what}: {answer}")
