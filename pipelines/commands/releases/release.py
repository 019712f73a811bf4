"""`shiplift release`."""

from typing import Annotated

import typer

from shiplift.pipelines.commands import completion, edge
from shiplift.pipelines.commands.options import AllowOlder, Detach, Engine, Json, Namespace, Spec, Watch


def release(
    name: Annotated[
        str,
        typer.Argument(
            help="A model, or a version of it.", metavar="MODEL[/VERSION]", autocompletion=completion.versions
        ),
    ],
    spec: Spec = None,
    detach: Detach = False,
    allow_older: AllowOlder = False,
    engine: Engine = None,
    namespace: Namespace = None,
    watch: Watch = False,
    as_json: Json = False,
) -> None:
    """Release a version now (the newest by default). If its release already exists, follow that one.

    Example: `shiplift release digits/3 --spec shiplift.yaml`, `shiplift release digits --engine argo --watch`
    """
    from shiplift.pipelines.commands.releases.release_order import ReleaseOrder, place

    order = ReleaseOrder(name=name, spec=edge.read(spec) if spec else "", again=False, allow_older=allow_older)
    place(edge.engine(engine, namespace), order, detach=detach, watch=watch, as_json=as_json)
