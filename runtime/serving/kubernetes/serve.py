"""What a serving pod runs: Triton itself, with every model of its repository and no way to load another.

The pod of a bench loads none by itself: its search does, with the key that the variable SHIPLIFT_REPOSITORY_KEY holds.

    python -m shiplift.runtime.serving.kubernetes.serve --repository /models --model digits

This process becomes the server (execve(2)), so it is Triton that gets the pod's SIGTERM and drains.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

from shiplift.runtime.base.errors import NotFound, ShipliftError
from shiplift.runtime.serving.kubernetes.guard import KEY
from shiplift.runtime.serving.triton.environment import ServerEnvironment
from shiplift.runtime.serving.triton.server import Features, Ports, command, variables

ENVIRONMENT = "/opt/triton"
PORTS = Ports(http=8000, grpc=8001, metrics=8002, host="0.0.0.0")  # noqa: S104 - a pod's address is for others


def words(
    repository: Path, models: list[str], features: Features, environment: ServerEnvironment, *, repository_key: str = ""
) -> list[str]:
    """The server's command line; with a key, that of a bench.

    Raises:
        NotFound: the repository lacks one of the models; a server without it would call itself ready.
    """
    missing = [model for model in models if not (repository / model / "config.pbtxt").is_file()]
    if missing:
        raise NotFound(f"{repository} has no model {', '.join(missing)}", do="See the log of the container `fetch`.")
    control: Literal["explicit", "none"] = "explicit" if repository_key else "none"
    line = command(environment, repository, PORTS, features, control=control, repository_key=repository_key)
    return [str(word) for word in line]


def main() -> None:
    """Reads the command line and becomes the server."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repository", type=Path, required=True)
    parser.add_argument("--model", action="append", required=True, help="A model that must be there; may be repeated.")
    parser.add_argument("--environment", type=Path, default=Path(ENVIRONMENT), help="The bundled server's environment.")
    parser.add_argument("--cache-mb", type=int, default=16)
    parser.add_argument("--rate-limiter", action="store_true")
    parser.add_argument("--meter", default="", help="ADDRESS:PORT where a bench tells what is used.")
    given = parser.parse_args()
    environment = ServerEnvironment(given.environment)
    try:
        line = words(
            given.repository,
            given.model,
            Features(cache_mb=given.cache_mb, rate_limiter=given.rate_limiter),
            environment,
            repository_key=os.environ.pop(KEY, ""),
        )
    except ShipliftError as error:
        print(f"{error.title}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    if given.meter:
        subprocess.Popen([sys.executable, "-m", "shiplift.runtime.host.meter", given.meter])
    os.execve(line[0], line, variables(environment))  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main()
