"""`shiplift retire`."""

from typing import Annotated

import typer

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Engine, Json, Namespace, Reason


def retire(
    name: Annotated[str, typer.Argument(help="A model, or a version that does not serve.", metavar="MODEL[/VERSION]")],
    reason: Reason = "",
    force: Annotated[
        bool, typer.Option("--force", help="Even if it has traffic, dependents, or a release under way.")
    ] = False,
    engine: Engine = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Take a model out of service, for good: only a new release brings it back. The registry keeps its history.

    Examples: `shiplift retire digits --reason "replaced by letters"`, `shiplift retire digits/3`
    """
    from shiplift.runtime.store.registry.terms import model_and_version

    model, version = model_and_version(name)
    chosen = edge.engine(engine, namespace)
    retired = chosen.retire(model, version or 0, reason=edge.reason(reason), force=force)
    edge.print_result(retired, lambda _: typer.echo(retired.sentence), as_json=as_json)
    for each in filter(None, (retired.traffic.sentence, *(each.sentence for each in retired.dependents))):
        edge.say(f"note: {each}")
