"""`shiplift pipeline`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Engine, Json, Namespace


def pipeline(
    action: Annotated[
        Literal["check", "build"],
        typer.Argument(help="check: find every mistake, and draw it; build: also write what Triton serves."),
    ],
    file: Annotated[Path, typer.Argument(help="The pipeline, such as pipeline.yaml.")],
    out: Annotated[Path | None, typer.Option(help="For build: a new or empty folder for the repository.")] = None,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print the graph as a Mermaid flowchart.")] = False,
    engine: Engine = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Check a pipeline of models against its members' contracts, or build the repository that Triton serves.

    Lists every mistake with its line; exits with 65 if there is any. Examples: `shiplift pipeline check pipeline.yaml`,
    `shiplift pipeline build pipeline.yaml --out bundle`
    """
    from shiplift.pipelines.commands.releases import pipeline_check

    chosen = edge.engine(engine, namespace)
    composed = pipeline_check.compose(chosen, file, edge.read(file))
    if action == "build":
        from shiplift.pipelines.commands.releases import pipeline_build

        built = pipeline_build.build(chosen, composed, out)
        edge.print_result(built, pipeline_build.show, as_json=as_json)
        return
    if mermaid:
        typer.echo(pipeline_check.flowchart(composed), nl=False)
    else:
        edge.print_result(composed.checked, lambda _: pipeline_check.show(composed), as_json=as_json)
    pipeline_check.end(composed, told=as_json)
