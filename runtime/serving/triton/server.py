"""Starting and stopping the bundled Triton: production as a daemon, staging and tuning as children of their step.

It runs with explicit model control (except in a pod, where the models never change), strict readiness and complete
configurations: without auto-complete a model loads in 0.15 s instead of 1.4 s. On a machine it runs confined, and
listens on loopback. The shared-memory API is closed with a key that nobody keeps.
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

from shiplift.runtime.base.errors import NotConfined, ServerFailed
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
from shiplift.runtime.serving.triton.confined import confined
from shiplift.runtime.serving.triton.environment import ServerEnvironment

_START_S = 30
NOT_CONFINED = f"{NotConfined.title}: "
_EXIT_S = 20
HTTP_THREADS = 8  # Triton's default
_ATTEMPTS = 3  # another process may take a free port before the server binds it


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
    """What a server is started with besides its models. The rate limiter costs about a tenth of the throughput.

    `http_threads` is the number of threads that read and answer HTTP; 0 means one per core, up to Triton's default of
    8. On two cores with 64 connections, eight of them cost a quarter more CPU time per request than two.
    `allow_without` are the mechanisms of confinement whose absence the site accepts. `tolerant`: a model that can't be
    loaded does not keep the others from serving. `flags` are more of Triton's own.
    """

    cache_mb: int = 16
    rate_limiter: bool = False
    http_threads: int = 0
    allow_without: tuple[str, ...] = ()
    tolerant: bool = False
    flags: tuple[str, ...] = ()


def command(
    environment: ServerEnvironment, repository: Path, ports: Ports, features: Features, *,
    control: Literal["explicit", "none"] = "explicit", repository_key: str = "",
) -> list[str | Path]:  # fmt: skip
    """The bundled server's command line.

    With `control` "none" it serves all of its repository, and nobody can change that. With a `repository_key`, only
    holders of the key can load and unload models.
    """
    apis = "model-repository,shared-memory" if repository_key else "shared-memory"
    closed = f"{apis}:shiplift={repository_key or secrets.token_hex(16)}"
    return [
        environment.tritonserver,
        *_flags(repository, ports, features, control),
        *features.flags,
        f"--backend-directory={environment.backends}",
        f"--cache-directory={environment.caches}",
        f"--http-thread-count={features.http_threads or min(len(os.sched_getaffinity(0)), HTTP_THREADS)}",
        "--allow-gpu-metrics=false",
        f"--http-restricted-api={closed}",
        f"--grpc-restricted-protocol={closed}",
    ]


def nvidia_command(repository: Path, ports: Ports, needs: ServerNeeds, *, load: Sequence[str]) -> list[str]:
    """The command line of the server in NVIDIA's image: it loads these models, and none that are added later.

    `runtime.guest.pod.guard` starts it, and closes the APIs with which others could load one.
    """
    features = Features(rate_limiter=needs.rate_limiter)
    loaded = [f"--load-model={model}" for model in load]
    return ["tritonserver", *_flags(repository, ports, features, "explicit"), *loaded, *needs.flags]


def _flags(repository: Path, ports: Ports, features: Features, control: str) -> list[str]:
    """The flags that both servers are started with."""
    flags = [
        f"--model-repository={repository}",
        f"--model-control-mode={control}",
        "--disable-auto-complete-config",  # formerly --strict-model-config
        f"--strict-readiness={'false' if features.tolerant else 'true'}",
        *(["--exit-on-error=false"] if features.tolerant else []),
        f"--exit-timeout-secs={_EXIT_S}",
        f"--http-address={ports.host}",
        f"--grpc-address={ports.host}",
        f"--metrics-address={ports.host}",
        f"--http-port={ports.http}",
        f"--grpc-port={ports.grpc}",
        f"--metrics-port={ports.metrics}",
        "--metrics-config=summary_latencies=true",  # p50 and p99 of the last minute, for dashboards and alerts
        f"--rate-limit={'execution_count' if features.rate_limiter else 'off'}",
    ]
    return [*flags, f"--cache-config=local,size={features.cache_mb << 20}"] if features.cache_mb else flags


def variables(environment: ServerEnvironment, features: Features | None = None) -> dict[str, str]:
    """The server's environment variables.

    The interpreter of the Python backend takes its library from the first `python3` on PATH: that of a virtual
    environment that somebody has activated is one that the server may not read.
    """
    own = str(environment.root / "bin")
    return {
        **inherited(("LANG", "TZ")),
        "PATH": os.pathsep.join((own, os.environ.get("PATH", os.defpath))),
        **dict.fromkeys(("HOME", "TMPDIR"), "/tmp"),  # noqa: S108 - its own
        "PYTHONDONTWRITEBYTECODE": "1",
        "LD_LIBRARY_PATH": environment.library_path,
        "SHIPLIFT_SERVER_SITE": str(environment.site),
        "SHIPLIFT_ENVIRONMENTS": str(environment.environments),
        "SHIPLIFT_ALLOW_WITHOUT": " ".join(features.allow_without if features else ()),
        "OMP_NUM_THREADS": "1",
    }


def start_production(
    environment: ServerEnvironment, repository: Path, ports: Ports, features: Features, *, log: Path
) -> Server:
    """Starts the production server as a daemon that outlives its starter and serves every model of its repository.

    Raises:
        ServerFailed: it did not come up.
        NotConfined: the kernel refuses to confine it.
    """
    arguments = command(environment, repository, ports, features)
    models = [f"--load-model={folder.name}" for folder in sorted(repository.iterdir()) if folder.is_dir()]
    launched = _confined([*arguments, *models], environment, repository, ports, features, ends_with_parent=False)
    process = start_daemon(launched, environment=variables(environment, features), log=log)
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
    """Like `private_server`, for callers that stop it elsewhere."""
    repository.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, _ATTEMPTS + 1):
        ports = Ports(http=free_port(), grpc=free_port(), metrics=free_port())
        arguments = command(environment, repository, ports, features)
        launched = _confined(arguments, environment, repository, ports, features, ends_with_parent=True)
        child: subprocess.Popen[bytes] | None = None
        try:
            child = start_child(launched, environment=variables(environment, features), log=log)
            server = Server(process=identify(child.pid), ports=ports, repository=repository)
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


def _confined(
    arguments: Sequence[str | Path], environment: ServerEnvironment, repository: Path, ports: Ports,
    features: Features, *, ends_with_parent: bool,
) -> list[str]:  # fmt: skip
    listens = (ports.http, ports.grpc, ports.metrics)
    return confined(
        arguments, environment, repository, ports=listens, ends_with_parent=ends_with_parent,
        allow_without=features.allow_without,
    )  # fmt: skip


def _reap(child: "subprocess.Popen[bytes] | None") -> None:
    if child is None:
        return
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
    if (why := _last_error(log)).startswith(NOT_CONFINED):
        raise NotConfined(f"Triton is {why}", do="See `shiplift doctor`.")
    raise ServerFailed(f"Triton did not come up on port {server.ports.grpc}: {why}", do=f"Its log is {log.name}.")


def _listening(ports: Ports) -> bool:
    """Whether all ports are open; Triton opens gRPC first.

    This is checked before gRPC is tried, because a refused gRPC channel waits a second before it retries.
    """
    return all(listening(ports.host, port) for port in (ports.grpc, ports.http, ports.metrics))


def _last_error(log: Path) -> str:
    """The last line of the log that looks like an error, or else its last line."""
    lines = log.read_text(errors="replace").splitlines()[-200:] if log.is_file() else []
    errors = [line for line in lines if line.startswith(("E", NOT_CONFINED)) or "failed" in line.lower()]
    return (errors or lines or ["its log is empty"])[-1][:400]
