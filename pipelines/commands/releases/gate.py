"""`shiplift gate`."""

from pathlib import Path
from typing import Annotated

import typer

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Engine, Json, Namespace


def gate(
    name: Annotated[
        str, typer.Argument(help="A version of a model, or a model for all its versions.", metavar="MODEL[/VERSION]")
    ],
    policy: Annotated[Path, typer.Option(help="Spec with the sections policy, slo, quality and data to judge by.")],
    engine: Engine = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Judge past releases by another policy, from their stored measurements; show which verdicts would change.

    Runs and changes nothing. Exits with the code of the (newest) verdict, as a release does: 0, 20 or 21. Example:
    `shiplift gate digits/3 --policy stricter.yaml`
    """
    from shiplift.pipelines.commands.releases import gate_replay
    from shiplift.pipelines.engines.replay import replay

    replayed = replay(edge.engine(engine, namespace), name, str(policy), edge.read(policy))
    edge.print_result(replayed, gate_replay.show, as_json=as_json)
    raise typer.Exit(replayed.outcome.exit_code)
