"""Tables for `shiplift status` and `shiplift up`: one for each kind of status, whichever engine it comes from."""

from collections.abc import Callable
from typing import Any

from rich.table import Table
from rich.text import Text

from shiplift.pipelines.commands import console
from shiplift.pipelines.engines.answers import ClusterStatus, ModelVersions, StackStatus, Status
from shiplift.pipelines.engines.local.status import Endpoints


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
        table = _table("model", "champion", "challenger", "previous", "latest")
        for model in status.models:
            numbers = [str(n or "-") for n in (model.champion, model.challenger, model.previous, model.latest)]
            table.add_row(model.model, *numbers)
        console.stdout.print()
        console.stdout.print(table)
    for name in status.releasing:
        console.stdout.print(f"releasing {name}", markup=False)


def _show_model(status: ModelVersions) -> None:
    console.stdout.print(f"{status.model}: {status.endpoint.http}, gRPC {status.endpoint.grpc}", markup=False)
    table = _table("version", "aliases", "outcome", "reason")
    for version in status.versions:
        table.add_row(str(version.version), ", ".join(version.aliases), version.outcome, version.reason)
    console.stdout.print(table)


def _show_cluster(status: ClusterStatus) -> None:
    table = _table("release", "model", "version", "phase", "verdict")
    for release in status.releases:
        verdict = Text(release.verdict, style=console.style(release.verdict))
        table.add_row(release.name, release.model, str(release.version), release.phase, verdict)
    console.stdout.print(table if status.releases else f"no releases in namespace {status.namespace}")
    for alias, version in status.aliases.items():
        console.stdout.print(f"{alias}  version {version}", markup=False)


def _table(*columns: str) -> Table:
    return Table(*columns, box=None, padding=(0, 3, 0, 0), header_style="dim")


_SHOW: dict[type[Status], Callable[[Any], None]] = {
    StackStatus: _show_stack, ModelVersions: _show_model, ClusterStatus: _show_cluster,
}  # fmt: skip
