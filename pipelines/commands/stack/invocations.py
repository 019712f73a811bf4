"""`shiplift invocations`."""

import os
from typing import Annotated

import typer

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Engine, Namespace
from shiplift.pipelines.commands.stack.openai import KEY


def invocations(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 8006,
    model: Annotated[str, typer.Option(help="The model that answers /invocations itself.", metavar="MODEL")] = "",
    engine: Engine = None,
    namespace: Namespace = None,
) -> None:
    """Serve MLflow's scoring protocol for the models in production, until Ctrl-C, beside what `shiplift up` starts.

    Each model answers at http://HOST:PORT/models/NAME/invocations. With --model, one of them answers at /invocations
    too, so this takes the place of `mlflow models serve`. If SHIPLIFT_API_KEY is set, clients must send it as their
    bearer token. Without a key, only this machine can connect. Example: `shiplift invocations --model digits --port
    5001`
    """
    from shiplift.runtime.base.errors import UsageError
    from shiplift.runtime.host.listeners import is_loopback
    from shiplift.runtime.host.processes import require_free
    from shiplift.runtime.serving.scoring.http_server import serve

    key = os.environ.get(KEY, "")
    if not key and not is_loopback(host):
        raise UsageError(f"everyone who can reach {host} could use the models", do=f"Set {KEY}, or leave out --host.")
    chosen = edge.engine(engine, namespace)
    names = sorted(each.model for each in chosen.discover_all())
    if model and model not in names:
        raise UsageError(f"production does not serve {model!r}", do=f"It serves {', '.join(names) or 'no model yet'}.")
    require_free(host, port, "the scoring server", "--port")
    edge.say(f"http://{host}:{port}/models/NAME/invocations serves {', '.join(names) or 'no model yet: release one'}")
    serve(chosen.discover_all, host, port, default=model, key=key)
