"""Starting and stopping the bundled Triton: production as a daemon, staging and tuning as children of their step.

It runs confined, and listens on loopback.
"""

import contextlib
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from shiplift.runtime.base.errors import NotConfined, ServerFailed, Temporary
from shiplift.runtime.host.processes import (
    alive,
    free_port,
    identify,
    kill,
    listening,
    start_child,
    start_daemon,
    stop,
)
from shiplift.runtime.records.process import Process
from shiplift.runtime.serving.machine.loading import Loader
from shiplift.runtime.serving.triton.client import TritonClient
from shiplift.runtime.serving.triton.command_line import Features, Ports, command, variables
from shiplift.runtime.serving.triton.confined import confined
from shiplift.runtime.serving.triton.environment import ServerEnvironment
from shiplift.runtime.serving.triton.repository_key import key_of, make_key

_START_S = 30
_END_S = 2
_LOADS_S = 20  # what takes longer goes on loading
NOT_CONFINED = f"{NotConfined.title}: "
_ATTEMPTS = 3  # another process may take a free port before the server binds it


@dataclass(frozen=True, kw_only=True)
class Server:
    """A running server: its process, its addresses (`host:port`), and the repository and log it was started with."""

    process: Process
    ports: Ports
    repository: Path
    log: Path

    @property
    def http(self) -> str:
        """The HTTP address."""
        return f"{self.ports.host}:{self.ports.http}"

    @property
    def grpc(self) -> str:
        """The gRPC address."""
        return f"{self.ports.host}:{self.ports.grpc}"

    @property
    def key(self) -> str:
        """The key that loads and unloads its models."""
        return key_of(self.repository)

    @property
    def metrics(self) -> str:
        """The URL of the Prometheus metrics."""
        return f"http://{self.ports.host}:{self.ports.metrics}/metrics"


def start_production(
    environment: ServerEnvironment, repository: Path, ports: Ports, features: Features, *, log: Path
) -> Server:
    """Starts the production server as a daemon that outlives its starter, and loads the models of its repository.

    Models that need more than `_LOADS_S` go on loading; `Loader` tries those that fail again.

    Raises:
        ServerFailed: it did not come up.
        NotConfined: the kernel refuses to confine it.
    """
    features = replace(features, tolerant=True, captures=True)
    arguments = command(environment, repository, ports, features)
    launched = _confined(arguments, environment, repository, ports, features, ends_with_parent=False)
    key = make_key(repository)
    process = start_daemon(launched, environment=variables(environment, features, repository_key=key), log=log)
    server = Server(process=process, ports=ports, repository=repository, log=log)
    try:
        _wait_live(server, log)
        _load(server)
    except BaseException:
        stop(process)
        raise
    return server


def _load(server: Server) -> None:
    with closing(Loader(server.repository, server.grpc)) as loader:
        loader.look()
        loader.wait(_LOADS_S)


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
    key = make_key(repository)
    for attempt in range(1, _ATTEMPTS + 1):
        ports = Ports(http=free_port(), grpc=free_port(), metrics=free_port())
        arguments = command(environment, repository, ports, features)
        launched = _confined(arguments, environment, repository, ports, features, ends_with_parent=True)
        child: subprocess.Popen[bytes] | None = None
        try:
            child = start_child(launched, environment=variables(environment, features, repository_key=key), log=log)
            server = Server(process=identify(child.pid), ports=ports, repository=repository, log=log)
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


@contextmanager
def survived(server: Server) -> Iterator[None]:
    """Turns "the server does not answer" into its end, if it has ended meanwhile: another try would end it again.

    Raises:
        ServerFailed: it has ended.
    """
    try:
        yield
    except Temporary as error:
        if not _ended(server.process):
            raise
        raise ServerFailed(
            f"the model ended the server that loaded it: {_last_error(server.log)}",
            do="Check that the model answers its own example, and how much memory it needs.",
        ) from error


def _ended(process: Process) -> bool:
    """Whether a process ends now: its connections break before it is gone."""
    deadline = time.monotonic() + _END_S
    while alive(process) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(process)


def _confined(
    arguments: Sequence[str | Path],
    environment: ServerEnvironment,
    repository: Path,
    ports: Ports,
    features: Features,
    *,
    ends_with_parent: bool,
) -> list[str]:
    listens = (ports.http, ports.grpc, ports.metrics)
    return confined(
        arguments,
        environment,
        repository,
        ports=listens,
        ends_with_parent=ends_with_parent,
        allow_without=features.allow_without,
    )


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
    errors = [line for line in lines if line.startswith(("E", "Signal (", NOT_CONFINED)) or "failed" in line.lower()]
    return (errors or lines or ["its log is empty"])[-1][:400]
