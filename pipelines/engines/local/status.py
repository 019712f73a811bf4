"""`shiplift status`: the stack, and what the registry says of each model."""

from pathlib import Path

from rich.table import Table

from shiplift.pipelines.commands import console
from shiplift.pipelines.engines.local import stack
from shiplift.pipelines.engines.local.releases import Releases
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.serving import Endpoint
from shiplift.runtime.store.registry import CHALLENGER, CHAMPION, PREVIOUS, TAG
from shiplift.runtime.store.registry_rest import PATIENT_S, RestRegistry

_SHOWN = (CHAMPION, CHALLENGER, PREVIOUS)


class Part(Record):
    """One process of the stack."""

    name: str
    running: bool
    pid: int
    memory_mb: float
    address: str


class ModelStatus(Record):
    """A model's aliases; 0: none."""

    model: str
    champion: int
    challenger: int
    previous: int
    latest: int


class StackStatus(Record):
    """The stack and the models of its registry."""

    home: str
    running: bool
    parts: tuple[Part, ...] = ()
    memory_mb: float = 0.0
    models: tuple[ModelStatus, ...] = ()
    releasing: tuple[str, ...] = ()


class VersionStatus(Record):
    """One version and how its release ended."""

    version: int
    aliases: tuple[str, ...]
    outcome: str
    verdict: str
    reason: str
    release: str


class ModelVersions(Record):
    """A model with its versions, newest first."""

    model: str
    serving_name: str
    endpoint: Endpoint
    versions: tuple[VersionStatus, ...]


class Endpoints(Record):
    """Where a stack answers."""

    mlflow: str
    receiver: str
    http: str
    grpc: str
    metrics: str


def endpoints(running: stack.Stack) -> Endpoints:
    """The addresses of a stack."""
    host = stack.HOST
    return Endpoints(
        mlflow=running.registry_uri,
        receiver=f"http://{host}:{running.receiver_port}",
        http=f"http://{host}:{running.http_port}",
        grpc=f"{host}:{running.grpc_port}",
        metrics=f"http://{host}:{running.metrics_port}/metrics",
    )


def show_endpoints(found: Endpoints) -> None:
    """The addresses, one a line."""
    for name, address in found.model_dump().items():
        console.stdout.print(f"{name:<10}{address}", markup=False)


def of_stack(home: Path) -> StackStatus:
    """The stack of a home, running or not."""
    found = stack.read(home)
    if found is None:
        return StackStatus(home=str(home), running=False)
    memory = stack.memory(found)
    at = endpoints(found)
    addresses = {"mlflow": at.mlflow, "receiver": at.receiver, "triton": at.http}
    parts = tuple(
        Part(
            name=name,
            running=found.runs(name),
            pid=found.processes[name].pid if found.runs(name) else 0,
            memory_mb=round(memory.get(name, 0), 1),
            address=addresses.get(name, ""),
        )
        for name in found.names
    )
    releases = Releases(home)
    return StackStatus(
        home=str(home),
        running=all(part.running for part in parts),
        parts=parts,
        memory_mb=round(sum(memory.values()), 1),
        models=_models(found) if found.runs("mlflow") or not found.embedded_registry else (),
        releasing=tuple(releases.pending()),
    )


def _models(found: stack.Stack) -> tuple[ModelStatus, ...]:
    registry = RestRegistry(found.registry_uri, timeout_s=PATIENT_S)
    return tuple(
        ModelStatus(
            model=name,
            champion=aliases.get(CHAMPION, 0),
            challenger=aliases.get(CHALLENGER, 0),
            previous=aliases.get(PREVIOUS, 0),
            latest=latest,
        )
        for name, latest, aliases in registry.models()
    )


def of_model(home: Path, model: str) -> ModelVersions:
    """A model's versions.

    Raises:
        StackDown: the stack does not run.
        NotFound: the registry does not know the model.
    """
    running = stack.require(home)
    registry = RestRegistry(running.registry_uri, timeout_s=PATIENT_S)
    name = serving_name(model)
    aliases = registry.aliases(model)
    versions = sorted(registry.versions(model), key=lambda info: -info.version)
    return ModelVersions(
        model=model,
        serving_name=name,
        endpoint=Endpoint(http=f"{endpoints(running).http}/v2/models/{name}", grpc=endpoints(running).grpc),
        versions=tuple(
            VersionStatus(
                version=info.version,
                aliases=tuple(alias for alias in _SHOWN if aliases.get(alias) == info.version),
                outcome=info.tags.get(f"{TAG}outcome", "not released"),
                verdict=info.tags.get(f"{TAG}verdict", ""),
                reason=info.tags.get(f"{TAG}reason", ""),
                release=info.tags.get(f"{TAG}release", ""),
            )
            for info in versions
        ),
    )


def show(found: StackStatus | ModelVersions) -> None:
    """Either, for a person."""
    _show_stack(found) if isinstance(found, StackStatus) else _show_model(found)


def _show_stack(found: StackStatus) -> None:
    if not found.parts:
        console.stdout.print(f"no stack in {found.home}; `shiplift up` starts one", markup=False)
        return
    table = Table("part", "state", "pid", "MiB", "address", box=None, padding=(0, 3, 0, 0), header_style="dim")
    for part in found.parts:
        state = "[green]running[/]" if part.running else "[red]down[/]"
        table.add_row(part.name, state, str(part.pid or ""), f"{part.memory_mb:.0f}", part.address)
    console.stdout.print(table)
    if found.models:
        table = Table(
            "model", "champion", "challenger", "previous", "latest", box=None, padding=(0, 3, 0, 0), header_style="dim"
        )
        for one in found.models:
            numbers = [str(n or "-") for n in (one.champion, one.challenger, one.previous, one.latest)]
            table.add_row(one.model, *numbers)
        console.stdout.print()
        console.stdout.print(table)
    for name in found.releasing:
        console.stdout.print(f"releasing {name}", markup=False)


def _show_model(found: ModelVersions) -> None:
    console.stdout.print(f"{found.model}: {found.endpoint.http}, gRPC {found.endpoint.grpc}", markup=False)
    table = Table("version", "aliases", "outcome", "reason", box=None, padding=(0, 3, 0, 0), header_style="dim")
    for one in found.versions:
        table.add_row(str(one.version), ", ".join(one.aliases), one.outcome, one.reason)
    console.stdout.print(table)
