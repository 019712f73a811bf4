"""The embedded stack: MLflow, Triton, its scoring server, the receiver, the page and the dispatcher, as daemons.

Starting is idempotent: running processes are left alone, dead ones are restarted on the same ports. The processes are
independent of each other and of the command that started them: production keeps serving when everything else is gone.
"""

import contextlib
import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import psutil
from pydantic import Field

from shiplift.pipelines.engines.local import site_file
from shiplift.pipelines.settings import Settings
from shiplift.runtime.base.errors import RegistryHeld, ServerFailed, ShipliftError, StackDown
from shiplift.runtime.base.plain_http import NO_AUTHORITIES
from shiplift.runtime.base.progress import progress
from shiplift.runtime.base.secrets import load_secrets, make_private
from shiplift.runtime.base.storage import locked, write_atomically
from shiplift.runtime.host.folders import sweep
from shiplift.runtime.host.forks import Forks
from shiplift.runtime.host.processes import alive, free_port, inherited, memory_mb, require_free, start_daemon, stop
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.process import Process
from shiplift.runtime.records.site import Machine, SandboxSettings, Site
from shiplift.runtime.serving.machine.served import every_served
from shiplift.runtime.serving.triton.environment import default_root, ensure
from shiplift.runtime.spec.serving_settings import Metrics
from shiplift.runtime.store.registry.lease import LASTS_S, RegistryLease, this_host
from shiplift.runtime.store.registry.rest import PATIENT_S, RestRegistry

HOST = "127.0.0.1"
NAMES = ("mlflow", "triton", "scoring", "receiver", "page", "dispatcher")
_MODULES = {
    "scoring": "shiplift.pipelines.daemons.scoring",
    "receiver": "shiplift.pipelines.triggers.receiver",
    "page": "shiplift.pipelines.daemons.page",
    "dispatcher": "shiplift.pipelines.daemons.dispatcher",
}
_ONLY_SHOWS = "page"  # a stack works without it
AHEAD = "ahead"  # below the home: the folders of sandboxes that wait for the next release
_START_S = 120
_OF_MODELS = ("model_worker", "triton_python_b")  # processes of models in Triton, as the kernel cuts their names
Tell = Callable[[str], None]


class Stack(Record):
    """The configuration and the processes of a home's stack, stored in `stack.json`."""

    mlflow_port: int
    receiver_port: int
    http_port: int
    grpc_port: int
    metrics_port: int
    scoring_port: int = 0
    page_port: int = 0
    registry_uri: str
    server_environment: str
    cache_mb: int
    rate_limiter: bool
    metrics: Metrics = Metrics()
    sweep_s: float
    since: float
    sandbox: SandboxSettings = SandboxSettings()
    warm_minutes: float = 60
    holder: str = ""
    processes: dict[str, Process] = Field(default_factory=dict)

    def runs(self, name: str) -> bool:
        """Whether the process of this name is alive."""
        return name in self.processes and alive(self.processes[name])

    @property
    def embedded_registry(self) -> bool:
        """Whether the stack runs its own registry."""
        return self.registry_uri == f"http://{HOST}:{self.mlflow_port}"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the stack's processes."""
        return NAMES if self.embedded_registry else NAMES[1:]


def read(home: Path) -> Stack | None:
    """The stack of a home as it was last started; None if it never was."""
    file = home / "stack.json"
    return Stack.model_validate_json(file.read_text()) if file.is_file() else None


def require(home: Path) -> Stack:
    """The running stack of a home.

    Raises:
        StackDown: it was never started, or one of its processes has died, other than the page.
    """
    stack = read(home)
    if stack is None:
        raise StackDown(f"no stack was started in {home}", do="Run `shiplift up`.")
    dead = [name for name in stack.names if name != _ONLY_SHOWS and not stack.runs(name)]
    if dead:
        raise StackDown(f"{', '.join(dead)} of the stack in {home} is not running", do="Run `shiplift up`.")
    return stack


def site(home: Path, stack: Stack) -> Site:
    """The stack as the place where releases run."""
    rules = site_file.read(home)
    return Site(
        home=str(home),
        registry_uri=stack.registry_uri,
        artifacts_uri=(home / "artifacts").as_uri(),
        server_environment=stack.server_environment,
        sandbox=stack.sandbox,
        holder=stack.holder,
        page=f"http://{HOST}:{stack.page_port}" if stack.page_port else "",
        policy=rules.policy,
        prometheus=rules.prometheus,
        place=Machine(
            http=f"{HOST}:{stack.http_port}",
            grpc=f"{HOST}:{stack.grpc_port}",
            metrics=f"http://{HOST}:{stack.metrics_port}/metrics",
            rate_limiter=stack.rate_limiter,
        ),
    )


def up(settings: Settings, tell: Tell = lambda _: None, *, take_over: bool = False) -> Stack:
    """Starts the processes that are not running.

    Raises:
        RegistryHeld: another installation releases from the registry; `take_over` takes the lease from it.
        HomeNotPrivate: other users can write to the home.
        PortTaken: another process listens on a port of the stack.
        MissingTool: this machine can't run the bundled server.
        ServerFailed: a process did not start; its log says why.
    """
    home = settings.root
    make_private(home)
    for folder in ("logs", "mlflow", "artifacts", "production/models", "releases", "staging"):
        (home / folder).mkdir(parents=True, exist_ok=True)
    with _locked(home):
        _sweep(home)
        stack = _configured(home, settings)
        ensure(Path(stack.server_environment), tell)
        _check_ports(stack)
        if not stack.embedded_registry:  # before anything starts, because another installation may hold the lease
            renew_lease(home, stack, take_over=take_over)
        started = start_missing(home, stack, tell)
        if take_over:
            renew_lease(home, started, take_over=True)
        return started


def _configured(home: Path, settings: Settings) -> Stack:
    """The stack as it was, or a new one. Settings that can change while it runs are taken over if they are given."""
    before = read(home)
    stack = before or _new(settings)
    asked = settings.model_fields_set & {"sandbox", "warm_minutes"}
    stack = stack.model_copy(update={name: getattr(settings, name) for name in asked})
    if not stack.holder:  # a home of version 0.1
        stack = stack.model_copy(update={"holder": _new_holder()})
    missing = [name for name in ("scoring_port", "page_port") if not getattr(stack, name)]  # a home without them
    stack = stack.model_copy(update={name: _port(name, settings) for name in missing})
    if before and stack != before:
        write_atomically(home / "stack.json", stack.model_dump_json(indent=1))
    return stack


def start_missing(home: Path, stack: Stack, tell: Tell = lambda _: None, *, but: frozenset[str] = frozenset()) -> Stack:
    """Starts the processes that are not alive, except `but`, in the order of their dependencies.

    The dispatcher calls it too.
    """
    missing = [name for name in stack.names if not stack.runs(name) and name not in but]
    modules = [_MODULES[name] for name in missing if name in _MODULES]
    with contextlib.ExitStack() as closing:
        forks: Forks | None = None
        if modules:  # they are imported while MLflow and Triton start
            log = home / "logs" / "start.log"
            forks = closing.enter_context(Forks(modules, environment=_variables(), folder=home, log=log))
        for name in missing:
            tell(f"starting {name}")
            if forks and name in _MODULES:
                process = _start_own(home, stack, name, forks)
            else:
                process = _start_triton(home, stack) if name == "triton" else _start_mlflow(home, stack)
            stack = stack.model_copy(update={"processes": {**stack.processes, name: process}})
            write_atomically(home / "stack.json", stack.model_dump_json(indent=1))
            if name == "mlflow":
                wait_healthy(home, stack, "mlflow", f"{stack.registry_uri}/health")
            if name == "receiver":
                wait_healthy(home, stack, "receiver", f"http://{HOST}:{stack.receiver_port}/healthz")
                with contextlib.suppress(RegistryHeld):  # another installation took it: sweeps and promotions say so
                    renew_lease(home, stack)
    return stack


def down(home: Path, tell: Tell = lambda _: None) -> bool:
    """Stops every process of a home's stack, the last started first; returns whether any was running."""
    stack = read(home)
    if stack is None:
        return False
    with _locked(home):
        running = [name for name in reversed(stack.names) if stack.runs(name)]
        if running:
            with contextlib.suppress(ShipliftError):
                lease(home, stack).release()
        for name in running:
            tell(f"stopping {name}")
            # A server that died was started again by the dispatcher, as its child: it still ends in its own turn.
            grace_s = 30 if name in ("triton", "dispatcher") else 10
            stop(stack.processes[name], grace_s=grace_s, apart=tuple(stack.processes.values()))
        shutil.rmtree(home / "staging", ignore_errors=True)
        _sweep(home)
    return bool(running)


def _sweep(home: Path) -> None:
    """Removes the scratch folders of processes that were killed."""
    for folder in (home, home / AHEAD):
        sweep(folder)


def memory(stack: Stack) -> dict[str, float]:
    """The memory of each running process and its children: proportional set size in MiB."""
    return {name: memory_mb(stack.processes[name].pid) for name in stack.names if stack.runs(name)}


def models_memory(stack: Stack) -> float:
    """The part of Triton's memory that is in processes of models, in MiB."""
    if not stack.runs("triton"):
        return 0.0
    with contextlib.suppress(psutil.Error):
        family = psutil.Process(stack.processes["triton"].pid).children(recursive=True)
        return sum(memory_mb(each.pid) for each in family if each.name()[:15] in _OF_MODELS)
    return 0.0


def _locked(home: Path) -> AbstractContextManager[None]:
    return locked(home / ".lock")


def _new_holder() -> str:
    """A name for this installation in the registry's lease."""
    return uuid.uuid4().hex[:12]


def _new(settings: Settings) -> Stack:
    names = ("mlflow_port", "receiver_port", "http_port", "grpc_port", "metrics_port", "scoring_port", "page_port")
    ports = {name: _port(name, settings) for name in names}
    return Stack(
        **ports,
        registry_uri=settings.registry_uri or f"http://{HOST}:{ports['mlflow_port']}",
        server_environment=str((settings.server_environment or default_root()).absolute()),
        cache_mb=settings.cache_mb,
        rate_limiter=settings.rate_limiter,
        metrics=settings.metrics,
        sweep_s=settings.sweep_s,
        since=time.time(),
        sandbox=settings.sandbox,
        warm_minutes=settings.warm_minutes,
        holder=_new_holder(),
    )


def _port(name: str, settings: Settings) -> int:
    port: int = free_port() if settings.free_ports else getattr(settings, name)
    return port


def _check_ports(stack: Stack) -> None:
    """Checks every port before anything starts, so that a taken port doesn't leave half a stack running."""
    flags = {
        "mlflow": [("mlflow_port", "--mlflow-port")],
        "triton": [("http_port", "--http-port"), ("grpc_port", "--grpc-port"), ("metrics_port", "--metrics-port")],
        "scoring": [("scoring_port", "--scoring-port")],
        "receiver": [("receiver_port", "--receiver-port")],
        "page": [("page_port", "--page-port")],
    }
    for name, ports in flags.items():
        if name in stack.names and not stack.runs(name):
            for attribute, flag in ports:
                require_free(HOST, getattr(stack, attribute), f"{name} ({attribute.removesuffix('_port')})", flag)


def _start_mlflow(home: Path, stack: Stack) -> Process:
    folder = home / "mlflow"
    command = mlflow_command(stack.mlflow_port, f"sqlite:///{folder / 'mlflow.db'}", folder / "artifacts")
    variables = _variables() | mlflow_variables(home)
    return start_daemon(command, environment=variables, log=home / "logs" / "mlflow.log", folder=folder)


def mlflow_command(port: int, database: str, artifacts: Path) -> list[str | Path]:
    """The command that starts MLflow's server on this machine."""
    return [
        sys.executable,
        "-m",
        "shiplift.pipelines.daemons.mlflow_server",
        "server",
        "--host",
        HOST,
        "--port",
        str(port),
        "--workers",
        "1",
        "--backend-store-uri",
        database,
        "--artifacts-destination",
        artifacts,
    ]


def mlflow_variables(home: Path) -> dict[str, str]:
    """Environment variables that let MLflow's server send webhooks to this machine."""
    return {
        "MLFLOW_WEBHOOK_SECRET_ENCRYPTION_KEY": load_secrets(home).mlflow,
        "MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS": "true",
        "MLFLOW_WEBHOOK_ALLOWED_SCHEMES": "http,https",
        "MLFLOW_WEBHOOK_CACHE_TTL": "1",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }


def _start_triton(home: Path, stack: Stack) -> Process:
    from shiplift.runtime.serving.machine.server import start_production  # noqa: PLC0415 - as above
    from shiplift.runtime.serving.triton.command_line import Features, Ports  # noqa: PLC0415 - as above
    from shiplift.runtime.serving.triton.config import metrics_flags  # noqa: PLC0415 - 0.2 s, only to start it

    environment = ensure(Path(stack.server_environment))
    ports = Ports(http=stack.http_port, grpc=stack.grpc_port, metrics=stack.metrics_port, host=HOST)
    here = site(home, stack)
    for each in every_served(home):
        _make_environment(here, each.package)
    features = Features(
        cache_mb=stack.cache_mb,
        rate_limiter=stack.rate_limiter,
        allow_without=here.sandbox.allow_without,
        memory_mb=site_file.server_memory_mb(home),
        flags=tuple(metrics_flags(stack.metrics)),
    )
    repository = home / "production" / "models"
    return start_production(environment, repository, ports, features, log=home / "logs" / "triton.log").process


def _make_environment(here: Site, package: Package) -> None:
    """Makes the environment of a served Python model if it is gone; if that fails, only this model doesn't serve."""
    if package.python_environment is None:
        return
    from shiplift.runtime.serving.python_environment import prepare  # noqa: PLC0415 - only for such models

    try:
        prepare(here, package)
    except ShipliftError as error:
        progress(f"{package.model} does not serve, because its environment could not be made: {error}")


def _start_own(home: Path, stack: Stack, name: str, forks: Forks) -> Process:
    """Starts a process that is Shiplift's own: all but the dispatcher listen on a port."""
    listens = [] if name == "dispatcher" else ["--host", HOST, "--port", str(getattr(stack, f"{name}_port"))]
    log = home / "logs" / f"{name}.log"
    return forks.start(name, _MODULES[name], "--home", home, *listens, log=log)


def _variables() -> dict[str, str]:
    """The environment of the stack's processes: paths, pip's settings, and credentials for the registry."""
    prefixes = ("MLFLOW_TRACKING_", "MLFLOW_HTTP_REQUEST_", "AWS_", "GOOGLE_", "PIP_")
    credentials = {name: value for name, value in os.environ.items() if name.startswith(prefixes)}
    quiet = {"PYTHONUNBUFFERED": "1", "NO_PROXY": "*", "no_proxy": "*", "DO_NOT_TRACK": "1"}
    paths = inherited(("PATH", "HOME", "LANG", "TMPDIR", "TZ", "PYTHONPATH", "VIRTUAL_ENV"))
    return {**paths, **credentials, **quiet}


def lease(home: Path, stack: Stack) -> RegistryLease:
    """The stack's lease on its registry."""
    registry = RestRegistry(stack.registry_uri, timeout_s=PATIENT_S)
    return RegistryLease(registry, stack.holder, f"the stack in {home} on {this_host()}")


def renew_lease(home: Path, stack: Stack, *, take_over: bool = False) -> None:
    """Takes or renews the lease, and registers the receiver's webhook, which the registry calls for each new version.

    Each sweep renews the lease. It lasts for at least three sweeps, so one that fails doesn't lose it.

    Raises:
        RegistryHeld: another installation holds it.
    """
    url = f"http://{HOST}:{stack.receiver_port}/webhooks/mlflow"
    lasts_s = max(LASTS_S, 3 * stack.sweep_s)
    lease(home, stack).renew(url, load_secrets(home).webhook, lasts_s=lasts_s, take_over=take_over)


def wait_healthy(home: Path, stack: Stack, name: str, url: str) -> None:
    """Waits until a process of the stack that was just started answers.

    Raises:
        ServerFailed: it died, or does not answer in time.
    """
    deadline = time.monotonic() + _START_S
    with httpx.Client(timeout=2, trust_env=False, verify=NO_AUTHORITIES) as client:
        while time.monotonic() < deadline and stack.runs(name):
            with contextlib.suppress(httpx.HTTPError):
                if client.get(url).is_success:
                    return
            time.sleep(0.05)
    log = home / "logs" / f"{name}.log"
    if stack.runs(name):
        load, cores = os.getloadavg()[0], os.cpu_count()
        raise ServerFailed(
            f"{name} runs, but does not answer within {_START_S} s; the machine's load is {load:.0f} on {cores} cores",
            do=f"Run `shiplift up` again when less runs here. See its log, {log}.",
        )
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    last = lines[-1] if lines else "its log is empty"
    raise ServerFailed(f"{name} did not start: {last[:300]}", do=f"See its log, {log}.")
