"""Serves the application over HTTP until the process gets a signal to end."""

from collections.abc import Callable, Sequence

import uvicorn

from shiplift.runtime.host.listeners import ConnectionLimits, listener, serve_until_stopped
from shiplift.runtime.serving.discovery import ServedModel
from shiplift.runtime.serving.openai.app import create_app

_LIMITS = ConnectionLimits(connections=1024, connections_per_source=256)


def serve(look_up: Callable[[], Sequence[ServedModel]], host: str, port: int, *, key: str) -> None:
    """Serves until SIGTERM or SIGINT; answers in progress get time to finish."""
    configuration = listener(create_app(look_up, key=key), host, port, _LIMITS, keep_alive_s=75)
    serve_until_stopped(uvicorn.Server(configuration))
