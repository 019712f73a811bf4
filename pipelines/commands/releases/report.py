"""`shiplift report`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shiplift.pipelines.commands import completion, edge
from shiplift.pipelines.commands.options import Engine, Json, Namespace, OpenPage

if TYPE_CHECKING:
    from shiplift.runtime.records.release import ReleaseReport


def report(
    name: Annotated[
        str,
        typer.Argument(
            help="A registered model and its version.", metavar="[MODEL/VERSION]", autocompletion=completion.versions
        ),
    ] = "",
    compare: Annotated[str, typer.Option(help="Another MODEL/VERSION to compare with.")] = "",
    index: Annotated[
        bool, typer.Option("--index", help="Write a page of all models: champions, limits, verdicts.")
    ] = False,
    open_page: OpenPage = False,
    engine: Engine = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Show how a version's release ended, when its stages ran, and where its page is; or compare, or list all models.

    Examples: `shiplift report digits/3 --open`, `shiplift report digits/3 --compare digits/1`,
    `shiplift report --index --engine argo`
    """
    from shiplift.pipelines.commands.releases import report_pages

    chosen, folder = edge.engine(engine, namespace), edge.home() / "reports"
    if index:
        page = report_pages.index(chosen, folder)
        typer.echo(str(page))
    elif compare:
        page = report_pages.comparison(chosen, folder, compare, _named(name))
        typer.echo(str(page))
    else:
        ended = chosen.report(*edge.version_of(_named(name)))
        edge.print_result(ended, _show, as_json=as_json)
        page = Path(ended.report)
    if open_page:
        _open(page)


def _show(ended: "ReleaseReport") -> None:
    from shiplift.pipelines.commands import console, timeline

    console.show_report(ended)
    if ended.stages:
        console.stdout.print(timeline.chart(ended))


def _named(name: str) -> str:
    from shiplift.runtime.base.errors import UsageError

    if not name:
        raise UsageError("the version is missing", do="Write MODEL/VERSION, such as digits/3, or `--index`.")
    return name


def _open(page: Path) -> None:
    from shiplift.runtime.base.errors import NotFound

    if not page.is_file():
        raise NotFound("this release has no report page", do="`shiplift rerun` writes one.")
    if not edge.has_display() or typer.launch(page.absolute().as_uri()):
        edge.say(f"no browser can be opened here; the page is {page.absolute()}")
