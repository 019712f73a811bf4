"""The live page of a stack: a web site for this machine's browsers. It asks as commands do, and stores nothing."""

import argparse
import os
from pathlib import Path

import uvicorn

from shiplift.pipelines.engines.local.engine import LocalEngine
from shiplift.pipelines.page.app import create_app
from shiplift.pipelines.page.doors import Access
from shiplift.runtime.base.daemon import log_as_json, run_main
from shiplift.runtime.host.listeners import ConnectionLimits, listener

TOKEN = "SHIPLIFT_PAGE_TOKEN"  # noqa: S105 - the variable's name
_LIMITS = ConnectionLimits(connections=1024, connections_per_source=512)  # a browser keeps one open per live view


def main() -> None:
    """Serves the page of a home."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--home", type=Path, required=True, help="a stack's folder")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on")
    parser.add_argument("--port", type=int, required=True, help="the port to listen on")
    parser.add_argument("--name", action="append", default=[], help="a host name under which it answers, too")
    arguments = parser.parse_args()
    log_as_json()
    access = Access(host=arguments.host, names=tuple(arguments.name), token=os.environ.get(TOKEN, ""))
    app = create_app(LocalEngine(arguments.home), access)
    uvicorn.Server(listener(app, arguments.host, arguments.port, _LIMITS, grace_s=1, keep_alive_s=75)).run()


if __name__ == "__main__":
    run_main(main)
