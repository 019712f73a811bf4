"""`shiplift pipeline`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Engine, Json, Namespace


def pipeline(
    action: Annotated[
        Literal["check", "build", "plan"],
        typer.Argument(
            help="check: find every mistake, and draw it; build: also write what Triton serves; "
            "plan: find the cheapest settings of all members that hold an end-to-end limit."
        ),
    ],
    file: Annotated[Path, typer.Argument(help="The pipeline, such as pipeline.yaml.")],
    out: Annotated[Path | None, typer.Option(help="For build: a new or empty folder for the repository.")] = None,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print the graph as a Mermaid flowchart.")] = False,
    rate: Annotated[float | None, typer.Option(min=0.001, max=1e6, help="For plan: requests per second.")] = None,
    p99_ms: Annotated[float | None, typer.Option("--p99-ms", min=0.001, help="For plan: the end-to-end limit.")] = None,
    cv: Annotated[
        float | None, typer.Option(min=0, max=20, help="For plan: how bursty: 0 a clock, 1 at random. [default: 1]")
    ] = None,
    arrivals: Annotated[
        Path | None, typer.Option(help="For plan: recorded arrivals instead of a rate, a time in s per line.")
    ] = None,
    profiles: Annotated[
        Path | None, typer.Option(help="For plan: what is known of steps, and members' times that no release measured.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="For plan: of all that is random in it.")] = 0,
    engine: Engine = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Check a pipeline of models against its members' contracts, build what Triton serves, or plan its settings.

    Lists every mistake with its line; exits with 65 if there is any. Examples: `shiplift pipeline check pipeline.yaml`,
    `shiplift pipeline build pipeline.yaml --out bundle`, `shiplift pipeline plan pipeline.yaml --rate 200 --p99-ms 50`
    """
    from shiplift.pipelines.commands.releases import pipeline_check

    chosen = edge.engine(engine, namespace)
    if action == "plan":
        from shiplift.pipelines.commands.releases.planning import pipeline_plan

        expected, known = pipeline_plan.arrivals_of(rate, cv, arrivals), pipeline_plan.known_profiles(profiles)
        asked = pipeline_plan.compose(chosen, file, edge.read(file), known)
        made = pipeline_plan.make(chosen, asked, known, expected, p99_ms, seed)
        edge.print_result(made, pipeline_plan.show, as_json=as_json)
        return
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
