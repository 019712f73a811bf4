"""Tables for `shiplift status` and `shiplift up`: one for each kind of status, on either engine."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from rich.table import Table
from rich.text import Text

from shiplift.pipelines.commands import console
from shiplift.pipelines.engines.answers import (
    ClusterStatus,
    ModelStatus,
    ModelVersions,
    ServiceSummary,
    StackStatus,
    Status,
)
from shiplift.pipelines.engines.local.status import Endpoints

_INCIDENTS = 5  # how many of the newest are shown


def show(status: Status) -> None:
    """Prints a status as tables."""
    _SHOW[type(status)](status)


def show_endpoints(endpoints: Endpoints) -> None:
    """Prints the addresses of a stack, one per line."""
    for name, address in endpoints.model_dump().items():
        console.stdout.print(f"{name:<10}{address}", markup=False)


def _show_stack(status: StackStatus) -> None:
    if not status.parts:
        console.stdout.print(f"no stack in {status.home}; `shiplift up` starts one", markup=False)
        return
    table = _table("part", "state", "pid", "MiB", "address")
    for part in status.parts:
        state = "[green]running[/]" if part.running else "[red]down[/]"
        table.add_row(part.name, state, str(part.pid or ""), f"{part.memory_mb:.0f}", part.address)
    console.stdout.print(table)
    if status.models:
        table = _table("model", "champion", "challenger", "previous", "latest", "answers")
        for model in status.models:
            numbers = [str(n or "-") for n in (model.champion, model.challenger, model.previous, model.latest)]
            table.add_row(model.model, *numbers, _answers(model))
        console.stdout.print()
        console.stdout.print(table)
        for model in status.models:
            _show_drift(model.drift)
            _show_drift(f"{model.model} version {model.champion}: {model.data_drift}" if model.data_drift else "")
            _show_baking(f"{model.model} version {model.champion}", model.baking)
    for release in status.releasing:
        console.stdout.print(f"{release.model} version {release.version}: {release}", markup=False)
    for incident in status.incidents[-_INCIDENTS:]:
        at = datetime.fromtimestamp(incident.at, tz=UTC).astimezone()
        console.stdout.print(f"{at:%Y-%m-%d %H:%M:%S}  {incident.model}: {incident.event}", markup=False)


def _show_model(status: ModelVersions) -> None:
    console.stdout.print(f"{status.model}: {status.endpoint.http}, gRPC {status.endpoint.grpc}", markup=False)
    table = _table("version", "aliases", "outcome", "reason")
    for version in status.versions:
        outcome, reason = (str(version.under_way), "") if version.under_way else (version.outcome, version.reason)
        table.add_row(str(version.version), ", ".join(version.aliases), outcome, reason)
    console.stdout.print(table)
    _show_drift(status.drift)
    _show_drift(status.data_drift)
    _show_baking(status.model, status.baking)
    console.stdout.print(_answers(status))
    if status.proof:
        console.stdout.print(f"proved before promotion: {status.proof}", markup=False)
    if status.idle:
        console.stdout.print(f"cores are left idle: {status.idle}", markup=False)


def _answers(served: ModelStatus | ModelVersions) -> Text:
    """Whether a model's last golden request was answered correctly, and when one last was."""
    ago = f"{max(0.0, time.time() - served.verified_at):.0f} s ago"
    if served.finding:
        return Text(f"{served.finding} (last verified {ago if served.verified_at else 'never'})", style="red")
    return Text(f"verified {ago}" if served.verified_at else "-")


def _show_cluster(status: ClusterStatus) -> None:
    if status.services:
        several = any(service.targets for service in status.services)
        columns = ("model", "state", "version", "revision", "weights", *(["targets"] if several else []), "pods")
        table = _table(*columns, "message")
        for service in status.services:
            table.add_row(*_service_row(service, targets=several))
        console.stdout.print(table)
        for service in status.services:
            _show_baking(f"{service.model} version {service.version}", service.baking)
        console.stdout.print()
    table = _table("release", "model", "version", "workflow", "outcome", "why")
    for release in status.releases:
        outcome = Text(release.outcome, style=console.style(release.outcome))
        phase = release.phase or "removed"
        table.add_row(release.name, release.model, str(release.version), phase, outcome, Text(release.reason))
    console.stdout.print(table if status.releases else f"no releases in namespace {status.namespace}")
    if status.note:
        console.stdout.print(Text(status.note, style="yellow"))
    for alias, version in status.aliases.items():
        console.stdout.print(f"{alias}  version {version}", markup=False)
    _show_drift(status.drift)


def _service_row(service: ServiceSummary, *, targets: bool) -> tuple[str | Text, ...]:
    style = {"Ready": "green", "Stalled": "red"}.get(service.state, "yellow")
    state = service.state if service.state == "Ready" else f"{service.state}: {service.reason}"
    weights = ", ".join(f"{name} {percent} %" for name, percent in service.weights.items())
    pods = f"{service.ready_pods}/{service.pods}"
    shares = [service.targets or "-"] if targets else []
    version, revision = str(service.version or "-"), service.revision or "-"
    return service.model, Text(state, style=style), version, revision, weights, *shares, pods, service.message


def _show_drift(drift: str) -> None:
    if drift:
        console.stdout.print(Text(drift, style="yellow"))


def _show_baking(what: str, baking: str) -> None:
    if baking:
        console.stdout.print(f"{what}: {baking}", markup=False)


def _table(*columns: str) -> Table:
    """A table that wraps what is too wide for the terminal, or for 80 columns where there is none: nothing is cut."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


_SHOW: dict[type[Status], Callable[[Any], None]] = {
    StackStatus: _show_stack,
    ModelVersions: _show_model,
    ClusterStatus: _show_cluster,
}
