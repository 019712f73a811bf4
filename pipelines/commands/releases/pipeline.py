"""`shiplift pipeline`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Detach, Engine, Json, Namespace, Watch


def pipeline(
    action: Annotated[
        Literal["check", "register", "build", "plan"],
        typer.Argument(
            help="check: find every mistake, and draw the graph; register: make it the next version of a registered "
            "model, and release that; build: only write what Triton serves; "
            "plan: find the cheapest settings of all members that meet an end-to-end limit."
        ),
    ],
    file: Annotated[Path, typer.Argument(help="The pipeline, such as pipeline.yaml.")],
    out: Annotated[Path | None, typer.Option(help="For build: a new or empty folder for the repository.")] = None,
    example: Annotated[
        Path | None, typer.Option(help="For register: requests (NPZ, by input name), one per row.")
    ] = None,
    validation: Annotated[
        Path | None, typer.Option(help="For register: inputs with labels, against which its answers are scored.")
    ] = None,
    spec: Annotated[
        Path | None, typer.Option(help="For register: the release spec. [default: shiplift.yaml beside it, if any]")
    ] = None,
    detach: Detach = False,
    watch: Watch = False,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print the graph as a Mermaid flowchart.")] = False,
    rate: Annotated[float | None, typer.Option(min=0.001, max=1e6, help="For plan: requests per second.")] = None,
    p99_ms: Annotated[float | None, typer.Option("--p99-ms", min=0.001, help="For plan: the end-to-end limit.")] = None,
    cv: Annotated[
        float | None, typer.Option(min=0, max=20, help="For plan: burstiness, 0 a clock, 1 at random. [default: 1]")
    ] = None,
    arrivals: Annotated[
        Path | None, typer.Option(help="For plan: recorded arrivals instead of a rate, one time in s per line.")
    ] = None,
    profiles: Annotated[
        Path | None, typer.Option(help="For plan: facts about steps, and times of members that no release measured.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="For plan: seed of its random numbers.")] = 0,
    engine: Engine = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Check a pipeline of models against its members' contracts, release it, build what Triton serves, or plan it.

    Lists every mistake with its line, and exits with 65 if it finds any. Examples:
    `shiplift pipeline check pipeline.yaml`,
    `shiplift pipeline register pipeline.yaml --example requests.npz`,
    `shiplift pipeline build pipeline.yaml --out bundle`,
    `shiplift pipeline plan pipeline.yaml --rate 200 --p99-ms 50`
    """
    from shiplift.pipelines.commands.releases.pipelines import check

    chosen = edge.engine(engine, namespace)
    if action == "plan":
        from shiplift.pipelines.commands.releases.planning import pipeline_plan

        expected, known = pipeline_plan.arrivals_of(rate, cv, arrivals), pipeline_plan.known_profiles(profiles)
        asked = pipeline_plan.compose(chosen, file, edge.read(file), known)
        made = pipeline_plan.make(chosen, asked, known, expected, p99_ms, seed)
        edge.print_result(made, pipeline_plan.show, as_json=as_json)
        return
    composed = check.compose(chosen, file, edge.read(file))
    if action == "register":
        from shiplift.pipelines.commands.releases import release_order
        from shiplift.pipelines.commands.releases.pipelines import register

        name = register.register(chosen, composed, file, example=example, validation=validation, spec=spec)
        order = release_order.ReleaseOrder(name=name, spec="", again=False, allow_older=False)
        release_order.place(chosen, order, detach=detach, watch=watch, as_json=as_json)
        return
    if action == "build":
        from shiplift.pipelines.commands.releases.pipelines import build

        built = build.build(chosen, composed, out)
        edge.print_result(built, build.show, as_json=as_json)
        return
    if mermaid:
        typer.echo(check.flowchart(composed), nl=False)
    else:
        edge.print_result(composed.checked, lambda _: check.show(composed), as_json=as_json)
    check.end(composed, told=as_json)
