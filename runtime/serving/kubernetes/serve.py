"""What a serving pod runs: Triton itself, with every model of its repository and no way to load another.

    python -m shiplift.runtime.serving.kubernetes.serve --repository /models --model digits

This process becomes the server (execve(2)), so it is Triton that gets the pod's SIGTERM and drains.
"""

import argparse
import os
import sys
from pathlib import Path

from shiplift.runtime.base.errors import NotFound, ShipliftError
from shiplift.runtime.serving.triton.environment import ServerEnvironment
from shiplift.runtime.serving.triton.server import Features, Ports, command, variables

ENVIRONMENT = "/opt/triton"
PORTS = Ports(http=8000, grpc=8001, metrics=8002, host="0.0.0.0")  # noqa: S104 - a pod's address is for others


def words(repository: Path, models: list[str], features: Features, environment: ServerEnvironment) -> list[str]:
    """The server's command line.

    Raises:
        NotFound: the repository lacks one of the models; a server without it would call itself ready.
    """
    missing = [model for model in models if not (repository / model / "config.pbtxt").is_file()]
    if missing:
        raise NotFound(f"{repository} has no model {', '.join(missing)}", do="See the log of the container `fetch`.")
    return [str(word) for word in command(environment, repository, PORTS, features, control="none")]


def main() -> None:
    """Reads the command line and becomes the server."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repository", type=Path, required=True)
    parser.add_argument("--model", action="append", required=True, help="A model that must be there; may be repeated.")
    parser.add_argument("--environment", type=Path, default=Path(ENVIRONMENT), help="The bundled server's environment.")
    parser.add_argument("--cache-mb", type=int, default=16)
    parser.add_argument("--rate-limiter", action="store_true")
    given = parser.parse_args()
    environment = ServerEnvironment(given.environment)
    try:
        line = words(
            given.repository,
            given.model,
            Features(cache_mb=given.cache_mb, rate_limiter=given.rate_limiter),
            environment,
        )
    except ShipliftError as error:
        print(f"{error.title}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    os.execve(line[0], line, variables(environment))  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main()
