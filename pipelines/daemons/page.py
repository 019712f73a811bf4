"""The live page: a web site for people's browsers. It asks as commands do, and stores nothing.

On one machine it serves a stack's home. On a cluster it is a Deployment that only shows, since it does not know who
reaches it. `shiplift open` serves the same page on loopback for whoever has a kubeconfig.
"""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from time import sleep

import uvicorn

from shiplift.pipelines.engines.protocol import Engine
from shiplift.pipelines.page.app import create_app
from shiplift.pipelines.page.doors import Access
from shiplift.runtime.base.daemon import log_as_json, run_main
from shiplift.runtime.host.listeners import ConnectionLimits, listener, serve_until_stopped

TOKEN = "SHIPLIFT_PAGE_TOKEN"  # noqa: S105 - the variable's name
_LIMITS = ConnectionLimits(connections=1024, connections_per_source=512)  # a browser keeps one open per live view


def serve(engine: Engine, access: Access, port: int, *, started: Callable[[], object] | None = None) -> None:
    """Serves an engine's page until the process is told to end; `started` is called once it listens."""
    app = create_app(engine, access)
    server = uvicorn.Server(listener(app, access.host, port, _LIMITS, grace_s=1, keep_alive_s=75))

    def tell() -> None:
        while not server.started:
            sleep(0.02)
        if started:
            started()

    Thread(target=tell, daemon=True).start()
    serve_until_stopped(server)


def _engine(home: Path, namespace: str) -> Engine:
    if namespace:
        from shiplift.pipelines.engines.argo.engine import ArgoEngine  # noqa: PLC0415 - only the one that is asked

        return ArgoEngine(namespace, home, inside=True)
    from shiplift.pipelines.engines.local.engine import LocalEngine  # noqa: PLC0415

    return LocalEngine(home)


def main() -> None:
    """Serves the page of a home, or of an installation on a cluster."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--home", type=Path, required=True, help="a stack's folder; on a cluster, where pages are kept")
    parser.add_argument("--namespace", default="", help="the namespace on the cluster, instead of a stack")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on")
    parser.add_argument("--port", type=int, required=True, help="the port to listen on")
    parser.add_argument("--name", action="append", default=[], help="a host name under which it answers, too")
    arguments = parser.parse_args()
    log_as_json()
    access = Access(host=arguments.host, names=tuple(arguments.name), token=os.environ.get(TOKEN, ""))
    serve(_engine(arguments.home, arguments.namespace), access, arguments.port)


if __name__ == "__main__":
    run_main(main)
