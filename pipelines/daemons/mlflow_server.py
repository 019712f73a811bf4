"""MLflow's server in one process: `mlflow server` itself waits beside the one that serves, with 180 MB of imports.

    python -m shiplift.pipelines.daemons.mlflow_server server OPTIONS-OF-MLFLOW-SERVER

MLflow reads its options, checks its database and finds out how uvicorn is to be started. Then this process becomes it.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn


def become(command: Sequence[str], *, extra_env: Mapping[str, str] | None = None, **_: Any) -> NoReturn:
    """Replaces this process by a command, where MLflow would start it and wait."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvpe(command[0], [str(word) for word in command], {**os.environ, **(extra_env or {})})  # noqa: S606


def main() -> None:
    """Runs MLflow's command line, but for its child."""
    import mlflow.server  # noqa: PLC0415 - seconds
    from mlflow.cli import cli  # noqa: PLC0415

    if hasattr(mlflow.server, "_exec_cmd"):  # else it waits, as it always did
        mlflow.server._exec_cmd = become
    cli()


if __name__ == "__main__":
    main()
