"""Serves the application over HTTP until the process gets a signal to end."""

import uvicorn

from shiplift.runtime.host.listeners import ConnectionLimits, listener, serve_until_stopped
from shiplift.runtime.serving.scoring.app import ScoringApp
from shiplift.runtime.serving.scoring.models import LookUp

_LIMITS = ConnectionLimits(connections=1024, connections_per_source=256)


def serve(look_up: LookUp, host: str, port: int, *, default: str = "", key: str = "") -> None:
    """Serves until SIGTERM or SIGINT; answers in progress get time to finish."""
    configuration = listener(ScoringApp(look_up, default=default, key=key), host, port, _LIMITS, keep_alive_s=75)
    serve_until_stopped(uvicorn.Server(configuration))
