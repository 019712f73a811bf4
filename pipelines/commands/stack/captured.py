"""`shiplift captured`."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Engine, Json, Model, Namespace

if TYPE_CHECKING:
    from shiplift.runtime.records.capturing import Captured


def captured(
    model: Model,
    export: Annotated[
        Path | None, typer.Option(metavar="FILE.parquet", help="Write all rows to this file.", dir_okay=False)
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the rows of --key.")] = False,
    key: Annotated[
        str | None, typer.Option(metavar="VALUE", help="The value of the spec's `capture.key` whose rows go.")
    ] = None,
    engine: Engine = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Show what is kept of a model's requests and answers, export it, or delete a person's rows.

    Examples: `shiplift captured digits --export rows.parquet`, `shiplift captured digits --delete --key 4711`
    """
    from shiplift.runtime.base.errors import UsageError

    if delete != (key is not None) or (export and delete):
        raise UsageError("--delete and --key belong together, and exclude --export", do="Write `--delete --key VALUE`.")
    chosen = edge.engine(engine, namespace)
    if delete and key is not None:
        gone = chosen.delete_captured(model, key)
        edge.print_result(gone, lambda _: typer.echo(f"{gone.deleted} rows were deleted"), as_json=as_json)
    elif export:
        written = chosen.export_captured(model, export)
        edge.print_result(written, lambda _: typer.echo(f"{written.rows} rows are in {export}"), as_json=as_json)
    else:
        edge.print_result(chosen.captured(model), _show, as_json=as_json)


def _show(kept: "Captured") -> None:
    from shiplift.runtime.base.text import printable

    size = f"{kept.size_bytes / 1e6:.1f} MB of {kept.limit_bytes / 1e6:,.0f} MB"
    typer.echo(f"{kept.rows} rows in {kept.files} files, {size}")
    if kept.since is not None and kept.until is not None:
        typer.echo(f"from {_at(kept.since)} to {_at(kept.until)}")
    typer.echo(f"captured: {kept.share:.4g} of the requests" if kept.on else "captured: no more")
    if kept.dropped or kept.too_large:
        typer.echo(f"not kept: {kept.dropped} requests for want of room, {kept.too_large} that are too large")
    if kept.problem:
        edge.say(printable(kept.problem))


def _at(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, tz=UTC).astimezone():%Y-%m-%d %H:%M:%S}"
