"""What a serving pod runs: Triton itself, with every model of its repository and no way to load another.

The pod of a bench loads nothing at the start: the search loads models, with the key in SHIPLIFT_REPOSITORY_KEY.

    python -m shiplift.runtime.serving.kubernetes.serve --repository /models --model digits

With `--shared` it serves the models that it can: each model of a shared server is checked before it gets requests.

This process becomes the server (execve(2)), so that Triton itself gets the pod's SIGTERM and drains.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

from shiplift.runtime.base.errors import NotFound, ShipliftError
from shiplift.runtime.guest.pod import heartbeat
from shiplift.runtime.guest.pod.guard import KEY
from shiplift.runtime.serving.triton.command_line import Features, Ports, command, variables
from shiplift.runtime.serving.triton.confined import confine_in_pod
from shiplift.runtime.serving.triton.environment import ServerEnvironment

ENVIRONMENT = "/opt/triton"
PORTS = Ports(http=8000, grpc=8001, metrics=8002, host="0.0.0.0")  # noqa: S104 - other pods must reach it


def command_line(
    repository: Path, models: list[str], features: Features, environment: ServerEnvironment, *, changes: bool = False
) -> list[str]:
    """The server's command line. The models of one that `changes`, a bench's, can be loaded and unloaded.

    Raises:
        NotFound: the repository lacks one of the models, without which the server would report ready all the same; a
            `tolerant` server may lack some, but not all.
    """
    missing = [model for model in models if not (repository / model / "config.pbtxt").is_file()]
    if missing and not (features.tolerant and len(missing) < len(models)):
        raise NotFound(f"{repository} has no model {', '.join(missing)}", do="See the log of the container `fetch`.")
    control: Literal["explicit", "none"] = "explicit" if changes else "none"
    arguments = command(environment, repository, PORTS, features, control=control)
    return [str(argument) for argument in arguments]


def main() -> None:
    """Reads the command line and becomes the server."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repository", type=Path, required=True)
    parser.add_argument("--model", action="append", required=True, help="A model that must be there; may be repeated.")
    parser.add_argument("--environment", type=Path, default=Path(ENVIRONMENT), help="The bundled server's environment.")
    parser.add_argument("--environments", type=Path, help="The folder of Python models' environments.")
    parser.add_argument("--allow-without", nargs="*", default=[], help="Mechanisms of confinement that may be missing.")
    parser.add_argument("--cache-mb", type=int, default=16)
    parser.add_argument("--rate-limiter", action="store_true")
    parser.add_argument("--flag", action="append", default=[], help="A flag of Triton's; may be repeated.")
    parser.add_argument("--captures", action="store_true", help="Requests of its models can be captured.")
    parser.add_argument("--shared", action="store_true", help="Serve the other models if one is missing or broken.")
    parser.add_argument("--meter", default="", help="ADDRESS:PORT where a bench reports resource usage.")
    parser.add_argument("--heartbeat", default="", help="ADDRESS:PORT where the heartbeat answers the liveness probe.")
    parser.add_argument("--patience", default="", help="Seconds without an answer after which the server is stuck.")
    options = parser.parse_args()
    environment = ServerEnvironment(options.environment, options.environments)
    features = Features(
        cache_mb=options.cache_mb,
        rate_limiter=options.rate_limiter,
        tolerant=options.shared,
        captures=options.captures,
        flags=tuple(options.flag),
        allow_without=tuple(options.allow_without),
    )
    key = os.environ.pop(KEY, "")
    try:
        arguments = command_line(options.repository, options.model, features, environment, changes=bool(key))
    except ShipliftError as error:
        print(f"{error.title}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    if options.meter:
        subprocess.Popen([sys.executable, "-m", "shiplift.runtime.guest.pod.meter", options.meter])
    if options.heartbeat:
        patience = ["--patience", options.patience] if options.patience else []
        subprocess.Popen([sys.executable, "-m", heartbeat.__name__, options.heartbeat, *patience])
    missing = confine_in_pod(environment, options.repository, (PORTS.http, PORTS.grpc, PORTS.metrics))
    for mechanism, why in missing.items():
        print(f"not confined by {mechanism}: {why}", file=sys.stderr, flush=True)
    own = {
        **variables(environment, features, repository_key=key),
        "SHIPLIFT_MISSING": " ".join(missing),
    }  # workers lack it, too
    os.execve(arguments[0], arguments, own)  # noqa: S606 - no shell is needed


if __name__ == "__main__":
    main()
