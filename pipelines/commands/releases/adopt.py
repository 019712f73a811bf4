"""`shiplift adopt`."""

from pathlib import Path
from typing import Annotated

import typer

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Detach, Engine, Json, Namespace


def adopt(
    folder: Annotated[Path, typer.Argument(help="A Triton model repository.", metavar="DIR")],
    model: Annotated[
        list[str] | None,
        typer.Option(help="A model to adopt; repeat it for more. [default: those that no ensemble calls]"),
    ] = None,
    example: Annotated[
        Path | None, typer.Option(help="Requests of one model (NPZ, by input name), one per row.")
    ] = None,
    spec: Annotated[Path | None, typer.Option(help="The release spec, logged with each model.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, and register nothing.")] = False,
    detach: Detach = False,
    engine: Engine = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Take the models of a Triton repository into the registry as they are, and release them as first champions.

    Nothing of the folder runs here: it is read in a sandbox, and the plan says what would be gained by releasing a
    model itself. A repository with mistakes registers nothing; a command that was interrupted goes on when run again.
    Examples: `shiplift adopt models --dry-run`, `shiplift adopt models --model ranker --example requests.npz`
    """
    from shiplift.pipelines.commands.releases import adopting

    plan = adopting.plan(folder, model or [], example, spec)
    if dry_run:
        edge.print_result(plan, adopting.show, as_json=as_json)
        return
    if not as_json:
        adopting.show(plan)
    chosen = edge.engine(engine, namespace)
    adopted = adopting.release(chosen, adopting.register(chosen, folder, plan, example, spec), detach, quiet=as_json)
    edge.print_result(adopted, adopting.show_adopted, as_json=as_json)
    raise typer.Exit(max((each.exit_code for each in adopted.models), default=0))
