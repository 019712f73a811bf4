"""`shiplift pipeline check`, `release`, `build` and `plan`."""

from pathlib import Path
from typing import Annotated

import typer

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Detach, Engine, Json, Namespace, Watch

File = Annotated[Path, typer.Argument(help="The pipeline, such as pipeline.yaml.", metavar="FILE")]


def check(
    file: File,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print the graph as a Mermaid flowchart.")] = False,
    engine: Engine = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Check a pipeline of models against its members' contracts, and draw its graph.

    Lists every mistake with its line, and exits with 65 if it finds any.
    Examples: `shiplift pipeline check pipeline.yaml`, `shiplift pipeline check pipeline.yaml --mermaid`
    """
    from shiplift.pipelines.commands.releases.pipelines import check as checking

    composed = checking.compose(edge.engine(engine, namespace), file, edge.read(file))
    if mermaid:
        typer.echo(checking.flowchart(composed), nl=False)
    else:
        edge.print_result(composed.checked, lambda _: checking.show(composed), as_json=as_json)
    checking.end(composed, told=as_json)


def release(
    file: File,
    example: Annotated[Path | None, typer.Option(help="Requests (NPZ, by input name), one per row.")] = None,
    validation: Annotated[
        Path | None, typer.Option(help="Inputs with labels, against which its answers are scored.")
    ] = None,
    spec: Annotated[
        Path | None, typer.Option(help="The release spec. [default: shiplift.yaml beside it, if any]")
    ] = None,
    detach: Detach = False,
    watch: Watch = False,
    engine: Engine = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Make a pipeline the next version of its registered model, and release that.

    Example: `shiplift pipeline release pipeline.yaml --example requests.npz --validation labelled.npz`
    """
    from shiplift.pipelines.commands.releases import release_order
    from shiplift.pipelines.commands.releases.pipelines import check as checking
    from shiplift.pipelines.commands.releases.pipelines import register

    chosen = edge.engine(engine, namespace)
    composed = checking.compose(chosen, file, edge.read(file))
    name = register.register(chosen, composed, file, example=example, validation=validation, spec=spec)
    order = release_order.ReleaseOrder(name=name, spec="", again=False, allow_older=False)
    release_order.place(chosen, order, detach=detach, watch=watch, as_json=as_json)


def build(
    file: File,
    out: Annotated[Path | None, typer.Option(help="A new or empty folder for the repository.")] = None,
    engine: Engine = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Write what Triton serves of a pipeline: an ensemble, or a model that calls its members.

    Example: `shiplift pipeline build pipeline.yaml --out bundle`
    """
    from shiplift.pipelines.commands.releases.pipelines import build as building
    from shiplift.pipelines.commands.releases.pipelines import check as checking

    chosen = edge.engine(engine, namespace)
    built = building.build(chosen, checking.compose(chosen, file, edge.read(file)), out)
    edge.print_result(built, building.show, as_json=as_json)


def plan(
    file: File,
    rate: Annotated[float | None, typer.Option(min=0.001, max=1e6, help="Requests per second.")] = None,
    p99_ms: Annotated[float | None, typer.Option("--p99-ms", min=0.001, help="The end-to-end limit.")] = None,
    cv: Annotated[
        float | None, typer.Option(min=0, max=20, help="Burstiness: 0 a clock, 1 at random. [default: 1]")
    ] = None,
    arrivals: Annotated[
        Path | None, typer.Option(help="Recorded arrivals instead of a rate, one time in s per line.")
    ] = None,
    profiles: Annotated[
        Path | None, typer.Option(help="Facts about steps, and times of members that no release measured.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of its random numbers.")] = 0,
    engine: Engine = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Find the cheapest settings of all members of a pipeline that meet an end-to-end limit.

    Example: `shiplift pipeline plan pipeline.yaml --rate 200 --p99-ms 50`
    """
    from shiplift.pipelines.commands.releases.planning import pipeline_plan

    chosen = edge.engine(engine, namespace)
    expected, known = pipeline_plan.arrivals_of(rate, cv, arrivals), pipeline_plan.known_profiles(profiles)
    asked = pipeline_plan.compose(chosen, file, edge.read(file), known)
    made = pipeline_plan.make(chosen, asked, known, expected, p99_ms, seed)
    edge.print_result(made, pipeline_plan.show, as_json=as_json)
