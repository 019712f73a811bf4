"""`shiplift predict`."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from shiplift.pipelines.commands import completion, edge
from shiplift.pipelines.commands.options import Engine, Json, Namespace

if TYPE_CHECKING:
    from shiplift.runtime.records.offline import OfflineOrder, OfflineResult
    from shiplift.runtime.records.release import Event

OnError = Literal["fail", "skip", "column"]
_LINES_S = 10.0


def predict(
    name: Annotated[
        str,
        typer.Argument(
            help="A model: its champion, a version, or the version with an alias.",
            metavar="MODEL[/VERSION|@ALIAS]",
            autocompletion=completion.versions,
        ),
    ],
    source: Annotated[
        str, typer.Option("--input", help="A file or a folder of Parquet, CSV or NDJSON; on a cluster also a URI.")
    ],
    output: Annotated[str, typer.Option(help="Folder for the answers, as Parquet; on a cluster also a URI.")],
    keep: Annotated[
        list[str] | None,
        typer.Option(help="A column to repeat in the output ('' for none). [default: all but the model's inputs]"),
    ] = None,
    errors: Annotated[
        OnError, typer.Option(help="A row that the model refuses ends it, is left out, or says why in a column.")
    ] = "fail",
    batch: Annotated[int, typer.Option(min=0, help="Rows of a request. [default: as the package was tuned]")] = 0,
    limit: Annotated[int, typer.Option(min=0, help="Score only so many rows. [default: all]")] = 0,
    workers: Annotated[
        int, typer.Option(min=0, help="Processes that read and write; on a cluster, pods. [default: half the cores; 4]")
    ] = 0,
    candidate: Annotated[
        bool, typer.Option("--candidate", help="Allow a version that was not promoted, as its newest release built it.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Remove what an earlier run left in the output.")] = (
        False
    ),
    engine: Engine = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Score a dataset apart from production, with the package that was promoted; it may be larger than memory.

    Each part of the dataset becomes a file. If it is killed, the same command goes on, and scores no part twice. With
    --json, progress is a line of JSON each, and the result the last. Example:
    `shiplift predict digits --input rows/ --output scored/`
    """
    from shiplift.runtime.base.errors import Cancelled

    order = _order(name, source, output, keep)
    order = order.model_copy(
        update={
            "on_error": errors,
            "batch": batch,
            "limit": limit,
            "workers": workers,
            "candidate": candidate,
            "overwrite": overwrite,
        }
    )
    try:
        result = _followed(edge.engine(engine, namespace).score(order), as_json=as_json)
    except KeyboardInterrupt:
        raise Cancelled("scoring was stopped", do="Run the same command again to go on.") from None
    edge.print_result(result, _show, as_json=as_json)


def _order(name: str, source: str, output: str, keep: list[str] | None) -> "OfflineOrder":
    from pathlib import Path

    from shiplift.runtime.records.offline import OfflineOrder
    from shiplift.runtime.store.registry.terms import check_name, model_and_version

    model, at, alias = name.removeprefix("models:/").partition("@")
    version = None
    if not at:
        model, version = model_and_version(name)
    places = [each if "://" in each else str(Path(each).absolute()) for each in (source, output)]
    return OfflineOrder(
        model=check_name(model),
        version=version or 0,
        alias=alias,
        input=places[0],
        output=places[1],
        keep=None if keep is None else tuple(column for column in keep if column),
    )


def _followed(happens: "object", *, as_json: bool) -> "OfflineResult":
    """Shows what happens, until the result."""
    from collections.abc import Iterator
    from typing import cast

    from shiplift.pipelines.commands import console
    from shiplift.runtime.records.offline import OfflineResult
    from shiplift.runtime.records.release import Event

    found: list[OfflineResult] = []
    shown: dict[str, float] = {}

    def events() -> Iterator[Event | None]:
        for each in cast("Iterator[Event | OfflineResult | None]", happens):
            if isinstance(each, OfflineResult):
                found.append(each)
                continue
            if each is not None and as_json:
                typer.echo(each.model_dump_json())
            if console.stderr.is_terminal or not _too_often(each, shown):
                yield each

    console.watch(events(), quiet=as_json)
    return found[0]


def _too_often(event: "Event | None", shown: dict[str, float]) -> bool:
    """Whether a line of progress follows the last one of its stage too fast for a file."""
    import time

    if event is None or event.kind != "progress" or event.done is None:
        return False
    now = time.monotonic()
    if now - shown.get(event.target, -_LINES_S) < _LINES_S:
        return True
    shown[event.target] = now
    return False


def _show(result: "OfflineResult") -> None:
    from shiplift.pipelines.commands.console import echo

    refused = f", {result.refused:,} rows refused" if result.refused else ""
    echo(f"{result.model} version {result.version}: {result.rows:,} rows in {result.parts} parts{refused}")
    if result.rows_per_s:
        echo(f"{result.rows_per_s:,.0f} rows/s in this run")
    echo(result.output)
