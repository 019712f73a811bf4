"""Starting and stopping the bundled Triton: production as a daemon, staging and tuning as children of their step.

In explicit model control (a pod's server, whose models never change, needs none), with complete configurations (no
auto-complete: a model then loads in 0.15 s instead of 1.4 s) and with strict readiness. On a machine it listens on
loopback. The shared-memory API is closed with a key nobody keeps.
"""

import contextlib
import os
import secrets
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shiplift.runtime.base.errors import ServerFailed
from shiplift.runtime.host.processes import (
    alive,
    free_port,
    identify,
    inherited,
    kill,
    listening,
    start_child,
    start_daemon,
    stop,
)
from shiplift.runtime.records.serving import Process, ServerNeeds
from shiplift.runtime.serving.triton.client import TritonClient
from shiplift.runtime.serving.triton.environment import ServerEnvironment

_START_S = 30
_EXIT_S = 20
HTTP_THREADS = 8  # Triton's default
_ATTEMPTS = 3  # a free port may be taken between being found and being bound


@dataclass(frozen=True, kw_only=True)
class Ports:
    """Where a server listens."""

    http: int
    grpc: int
    metrics: int
    host: str = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class Server:
    """A running server: its process, its addresses (`host:port`) and the repository it was started with."""

    process: Process
    ports: Ports
    repository: Path

    @property
    def http(self) -> str:
        """The HTTP address."""
        return f"{self.ports.host}:{self.ports.http}"

    @property
    def grpc(self) -> str:
        """The gRPC address."""
        return f"{self.ports.host}:{self.ports.grpc}"

    @property
    def metrics(self) -> str:
        """The URL of the Prometheus metrics."""
        return f"http://{self.ports.host}:{self.ports.metrics}/metrics"


@dataclass(frozen=True, kw_only=True)
class Features:
    """What a server is started with beyond its models. The rate limiter costs about a tenth of the throughput.

    `http_threads` is how many threads read and answer HTTP; 0: one a core, at most Triton's own 8. On two cores eight
    of them cost the server a quarter more CPU time a request at 64 connections than two.
    """

    cache_mb: int = 16
    rate_limiter: bool = False
    http_threads: int = 0


def command(
    environment: ServerEnvironment, repository: Path, ports: Ports, features: Features, *,
    control: Literal["explicit", "none"] = "explicit", repository_key: str = "",
) -> list[str | Path]:  # fmt: skip
    """The bundled server's command line.

    With `control` "none" it serves all of its repository, and nobody can change that. With a `repository_key` only who
    has it can.
    """
    apis = "model-repository,shared-memory" if repository_key else "shared-memory"
    closed = f"{apis}:shiplift={repository_key or secrets.token_hex(16)}"
    return [
        environment.tritonserver,
        *_flags(repository, ports, features, control),
        f"--backend-directory={environment.backends}",
        f"--cache-directory={environment.caches}",
        f"--http-thread-count={features.http_threads or min(len(os.sched_getaffinity(0)), HTTP_THREADS)}",
        "--allow-gpu-metrics=false",
        f"--http-restricted-api={closed}",
        f"--grpc-restricted-protocol={closed}",
    ]


def nvidia_command(repository: Path, ports: Ports, needs: ServerNeeds, *, load: Sequence[str]) -> list[str]:
    """The command line of the server in NVIDIA's image: these models, loaded explicitly, and none that comes later.

    `runtime.serving.kubernetes.guard` starts it, and closes what would let others load one.
    """
    features = Features(rate_limiter=needs.rate_limiter)
    loaded = [f"--load-model={model}" for model in load]
    return ["tritonserver", *_flags(repository, ports, features, "explicit"), *loaded, *needs.flags]


def _flags(repository: Path, ports: Ports, features: Features, control: str) -> list[str]:
    """What both servers are started with."""
    words = [
        f"--model-repository={repository}",
        f"--model-control-mode={control}",
        "--disable-auto-complete-config",  # what --strict-model-config was called before
        "--strict-readiness=true",
        f"--exit-timeout-secs={_EXIT_S}",
        f"--http-address={ports.host}",
        f"--grpc-address={ports.host}",
        f"--metrics-address={ports.host}",
        f"--http-port={ports.http}",
        f"--grpc-port={ports.grpc}",
        f"--metrics-port={ports.metrics}",
        f"--rate-limit={'execution_count' if features.rate_limiter else 'off'}",
    ]
    return [*words, f"--cache-config=local,size={features.cache_mb << 20}"] if features.cache_mb else words


def variables(environment: ServerEnvironment) -> dict[str, str]:
    """The server's environment variables."""
    return {
        **inherited(),
        "LD_LIBRARY_PATH": environment.library_path,
        "SHIPLIFT_SERVER_SITE": str(environment.site),
        "OMP_NUM_THREADS": "1",
    }


def start_production(
    environment: ServerEnvironment, repository: Path, ports: Ports, features: Features, *, log: Path
) -> Server:
    """The production server, as a daemon that outlives its starter; serving every model of its repository.

    Raises:
        ServerFailed: it did not come up.
    """
    words = command(environment, repository, ports, features)
    models = [f"--load-model={folder.name}" for folder in sorted(repository.iterdir()) if folder.is_dir()]
    process = start_daemon([*words, *models], environment=variables(environment), log=log)
    server = Server(process=process, ports=ports, repository=repository)
    try:
        _wait_live(server, log)
    except BaseException:
        stop(process)
        raise
    return server


@contextmanager
def private_server(
    environment: ServerEnvironment, repository: Path, features: Features, *, log: Path
) -> Iterator[Server]:
    """A server on free ports for as long as the context lasts; it dies with this process at the latest.

    Raises:
        ServerFailed: it did not come up.
    """
    server = start_private(environment, repository, features, log=log)
    try:
        yield server
    finally:
        kill(server.process)


def start_private(environment: ServerEnvironment, repository: Path, features: Features, *, log: Path) -> Server:
    """Like `private_server`, for who stops it elsewhere."""
    repository.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, _ATTEMPTS + 1):
        ports = Ports(http=free_port(), grpc=free_port(), metrics=free_port())
        words = command(environment, repository, ports, features)
        child = start_child(words, environment=variables(environment), log=log)
        server = Server(process=identify(child.pid), ports=ports, repository=repository)
        try:
            _wait_live(server, log, child)
        except ServerFailed:
            _reap(child)
            if attempt == _ATTEMPTS:
                raise
        except BaseException:
            _reap(child)
            raise
        else:
            return server
    raise AssertionError("unreachable")


def _reap(child: "subprocess.Popen[bytes]") -> None:
    child.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout=5)


def _wait_live(server: Server, log: Path, child: "subprocess.Popen[bytes] | None" = None) -> None:
    deadline = time.monotonic() + _START_S
    with TritonClient(server.grpc) as client:
        while time.monotonic() < deadline:
            ended = child.poll() is not None if child else not alive(server.process)
            if ended:
                break
            if _listening(server.ports) and client.live():
                return
            time.sleep(0.02)
    raise ServerFailed(
        f"Triton did not come up on port {server.ports.grpc}: {_complaint(log)}", do=f"Its log is {log.name}."
    )


def _listening(ports: Ports) -> bool:
    """All of them: Triton opens gRPC first. Asked before gRPC is, whose refused channel waits a second to try again."""
    return all(listening(ports.host, port) for port in (ports.grpc, ports.http, ports.metrics))


def _complaint(log: Path) -> str:
    """The server's last error line."""
    lines = log.read_text(errors="replace").splitlines()[-200:] if log.is_file() else []
    errors = [line for line in lines if line.startswith("E") or "failed" in line.lower()]
    return (errors or lines or ["it said nothing"])[-1][:400]
