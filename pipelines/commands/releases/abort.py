"""`shiplift abort`."""

import typer

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Engine, Json, Model, Namespace, Reason


def abort(
    model: Model, reason: Reason = "", engine: Engine = None, namespace: Namespace = None, as_json: Json = False
) -> None:
    """End a model's release; all traffic goes to the champion. Example: `shiplift abort digits --reason "too slow"`"""
    aborted = edge.engine(engine, namespace).abort(model, edge.reason(reason))
    serves = f"version {aborted.champion} serves" if aborted.champion else "the model is not served, as before"
    message = f"{aborted.model} version {aborted.version} was {aborted.message}; {serves}"
    edge.print_result(aborted, lambda _: typer.echo(message), as_json=as_json)
