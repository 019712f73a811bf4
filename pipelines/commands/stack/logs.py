"""`shiplift logs`."""

from typing import Annotated

import typer

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Engine, Namespace


def logs(
    name: Annotated[
        str,
        typer.Argument(
            help="MODEL/VERSION, or a component: mlflow, triton, receiver, dispatcher; on a cluster mlflow, receiver, "
            "reconciler. [default: dispatcher, on a cluster reconciler]",
            metavar="[NAME]",
            show_default=False,
        ),
    ] = "",
    lines: Annotated[int, typer.Option("--lines", "-n", help="Number of lines to show.", min=1)] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep showing new lines.")] = False,
    engine: Engine = None,
    namespace: Namespace = None,
) -> None:
    """Show the log of a component or of a release; on a cluster each line begins with its stage or pod.

    Example: `shiplift logs triton -f`, `shiplift logs digits/3 --engine argo -f`
    """
    from shiplift.runtime.base.text import printable

    for line in edge.engine(engine, namespace).logs(name, lines=lines, follow=follow):
        typer.echo(printable(line, lines=True))
