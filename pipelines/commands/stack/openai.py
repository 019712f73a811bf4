"""`shiplift openai`."""

import os
from typing import Annotated

import typer

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Engine, Namespace

KEY = "SHIPLIFT_API_KEY"


def openai(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 8004,
    engine: Engine = None,
    namespace: Namespace = None,
) -> None:
    """Serve OpenAI's API for the text generators in production, until Ctrl-C. Example: `shiplift openai --port 8004`

    Clients use http://HOST:PORT/v1 as their base URL: models, completions and chats, streamed or not. If
    SHIPLIFT_API_KEY is set, they must send it as their API key. Without a key, only this machine can connect.
    """
    from shiplift.runtime.base.errors import UsageError
    from shiplift.runtime.host.listeners import is_loopback
    from shiplift.runtime.host.processes import require_free
    from shiplift.runtime.serving.openai.http_server import serve

    key = os.environ.get(KEY, "")
    if not key and not is_loopback(host):
        raise UsageError(f"everyone who can reach {host} could use the models", do=f"Set {KEY}, or leave out --host.")
    chosen = edge.engine(engine, namespace)
    names = sorted(each.model for each in chosen.discover_all() if each.signature.streamed)
    require_free(host, port, "the API", "--port")
    edge.say(f"http://{host}:{port}/v1 serves {', '.join(names) or 'no text generator yet: release one'}")
    serve(chosen.discover_all, host, port, key=key)
