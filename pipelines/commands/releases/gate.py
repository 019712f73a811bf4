"""`shiplift gate`."""

from pathlib import Path
from typing import Annotated

import typer

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Engine, Json, Namespace


def gate(
    name: Annotated[str, typer.Argument(help="A model's version, or all its versions.", metavar="MODEL[/VERSION]")],
    policy: Annotated[Path, typer.Option(help="A spec with the sections to judge by: policy, slo, quality, data.")],
    engine: Engine = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Judge past releases by a changed policy, from their kept measurements; says which verdicts would flip.

    Nothing is run or changed. Exits as a release with the (newest) verdict would: 0, 20 or 21. Example:
    `shiplift gate digits/3 --policy stricter.yaml`
    """
    from shiplift.pipelines.commands.releases import gate_replay

    replay = gate_replay.replay(edge.engine(engine, namespace), name, str(policy), edge.read(policy))
    edge.give(replay, gate_replay.show, as_json=as_json)
    raise typer.Exit(replay.outcome.exit_code)
