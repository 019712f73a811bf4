"""The scoring server: MLflow's `/invocations` for every model in production, on this machine or on a cluster.

On a cluster, it reads what the operator publishes from a folder where the ConfigMap is mounted, so it needs no
permission. It runs no model and reads no model's files. Clients' data become tensors here, and Triton answers them.
"""

import argparse
import os
from functools import partial
from pathlib import Path

from shiplift.runtime.base.daemon import log_as_json, run_main
from shiplift.runtime.serving.discovery import ServedModel, published_in
from shiplift.runtime.serving.scoring.http_server import serve

KEY = "SHIPLIFT_API_KEY"


def main() -> None:
    """Serves MLflow's scoring protocol for a home, or for what a cluster's operator published."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--home", type=Path, help="a stack's folder")
    source.add_argument("--published", type=Path, metavar="FOLDER", help="where the operator's ConfigMap is mounted")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on")
    parser.add_argument("--port", type=int, required=True, help="the port to listen on")
    arguments = parser.parse_args()
    log_as_json()
    look_up = partial(published_in, arguments.published) if arguments.published else partial(_here, arguments.home)
    serve(look_up, arguments.host, arguments.port, key=os.environ.get(KEY, ""))


def _here(home: Path) -> list[ServedModel]:
    """The models of a home: production serves on, whatever else of the stack is gone."""
    from shiplift.pipelines.engines.local import stack  # noqa: PLC0415 - not on a cluster
    from shiplift.pipelines.engines.local.models import every_model  # noqa: PLC0415

    running = stack.read(home)
    return every_model(home, running) if running else []


if __name__ == "__main__":
    run_main(main)
