"""`shiplift ask`."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Engine, Json, ModelVersion, Namespace
from shiplift.runtime.base.errors import UsageError

if TYPE_CHECKING:
    from shiplift.runtime.records.asked import AskedAgain


def ask(
    name: ModelVersion,
    row: Annotated[
        list[int] | None,
        typer.Option(min=0, help="A row of those that the release asked; several are asked as one request."),
    ] = None,
    inputs: Annotated[
        str,
        typer.Option(
            metavar="JSON",
            help="A row itself, as a refusal shows it: the registered model is asked, twice; or it and a --form.",
        ),
    ] = "",
    form: Annotated[
        str, typer.Option(help="The form to ask, such as onnxruntime-fp32. [default: the one that serves]")
    ] = "",
    clients: Annotated[int, typer.Option(min=1, max=64, help="Ask from this many clients at once.")] = 1,
    engine: Engine = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Ask rows of a release's proof again: the original model, and what was built of it; show where they differ.

    `--inputs` is the row itself: of your own, or of a version that was refused before anything was built of it.

    A release that found a difference names the command that repeats it. Both run confined, and production is not
    asked. Exits with 43 if the form answers a row differently, or the model the same row; else with 0. Examples:
    `shiplift ask digits/3 --form onnxruntime-fp32 --row 12 --row 40`,
    `shiplift ask fraud/2 --inputs '{"amount": 12.5, "city": "Ulm"}'`
    """
    model, version = edge.version_of(name)
    if bool(row) == bool(inputs):
        raise UsageError("ask needs rows of the release, or one itself", do="Give either `--row` or `--inputs`.")
    asked = edge.engine(engine, namespace)
    again = (
        asked.ask_given(model, version, form, _row(inputs), clients)
        if inputs
        else asked.ask(model, version, form, row or [], clients)
    )
    edge.print_result(again, _show, as_json=as_json)
    if not again.same:
        from shiplift.runtime.base.errors import GoldenMismatch

        raise typer.Exit(GoldenMismatch.exit_code)


def _row(text: str) -> dict[str, Any]:
    """A row as JSON, in which NaN and infinities are allowed.

    Raises:
        UsageError: it is none.
    """
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--inputs is not JSON: {error}", do="Quote it as the refusal shows it.") from error
    if not isinstance(row, dict):
        raise UsageError("--inputs is not an object", do='Write a value for each input: {"NAME": VALUE}.')
    return row


def _show(again: "AskedAgain") -> None:
    from shiplift.pipelines.commands.console import echo

    form = f", {again.form}" if again.form else ""
    echo(f"{again.model} version {again.version}{form}; the original now: {again.judge}")
    if not again.compared:
        echo("  the original answers in another form than what is served, so both are only shown")
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
