"""`shiplift rollback`."""

import typer

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Engine, Json, Model, Namespace


def rollback(model: Model, engine: Engine = None, namespace: Namespace = None, as_json: Json = False) -> None:
    """Make the previous champion serve again, without losing a request. Example: `shiplift rollback digits`"""
    promotion = edge.engine(engine, namespace).rollback(model)
    message = f"{promotion.model} version {promotion.version} is the champion again (before: {promotion.previous})"
    edge.print_result(promotion, lambda _: typer.echo(message), as_json=as_json)
