"""A real MLflow server for the tests that need one of their own: with options, with TLS, or to stop it."""

import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from shiplift.runtime.host.processes import free_port, inherited, start_daemon, stop
from shiplift.runtime.records.process import Process
from tests.integration.conftest import until


@dataclass
class Server:
    """A separate MLflow server, so that it can be stopped."""

    folder: Path
    port: int
    process: Process
    address: str

    @property
    def uri(self) -> str:
        return f"mlflow-artifacts://127.0.0.1:{self.port}/shiplift"

    def blob(self, sha256: str) -> Path:
        return self.folder / "artifacts" / "shiplift" / "sha256" / sha256[:2] / sha256


@contextmanager
def running(
    folder: Path, *options: str, artifacts: str = "--artifacts-destination", authority: Path | None = None
) -> Iterator[Server]:
    """A server of its own.

    `artifacts` is the option that says where they are kept, `authority` the certificate that it shows, if it uses TLS.
    """
    port = free_port()
    address = f"{'https' if authority else 'http'}://127.0.0.1:{port}"
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--workers",
        "1",
        "--backend-store-uri",
        f"sqlite:///{folder}/mlflow.db",
        artifacts,
        str(folder / "artifacts"),
        *options,
    ]
    variables = {**inherited(), "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    process = start_daemon(command, environment=variables, log=folder / "mlflow.log", folder=folder)
    verify = ssl.create_default_context(cafile=authority) if authority else True

    def healthy() -> bool:
        try:
            return httpx.get(f"{address}/health", trust_env=False, verify=verify).is_success
        except httpx.HTTPError:
            return False

    try:
        until(healthy, seconds=120)
        yield Server(folder, port, process, address)
    finally:
        stop(process)
