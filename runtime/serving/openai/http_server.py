"""Serves the application over HTTP until the process gets a signal to end."""

import ipaddress
from collections.abc import Callable, Sequence

import uvicorn

from shiplift.runtime.serving.discovery import ServedModel
from shiplift.runtime.serving.openai.app import create_app

_CONNECTIONS = 1024  # beyond that, requests are refused with 503
_GRACE_S = 20


def serve(look_up: Callable[[], Sequence[ServedModel]], host: str, port: int, *, key: str) -> None:
    """Serves until SIGTERM or SIGINT; answers in progress get time to finish."""
    uvicorn.run(
        create_app(look_up, key=key),
        host=host,
        port=port,
        http="h11",
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=_GRACE_S,
        limit_concurrency=_CONNECTIONS,
    )


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine alone; of names, only `localhost` counts."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
