"""`shiplift targets`: the site's catalogue of places to serve, and what can be found to put into it."""

from pathlib import Path

from rich.table import Table
from rich.text import Text

from shiplift.pipelines.commands import console
from shiplift.runtime.base.errors import UsageError
from shiplift.runtime.records.base import Record
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.kinds import NODE
from shiplift.runtime.spec.target import Target
from shiplift.runtime.targets import catalogue, discovery, machine


class Entry(Record):
    """A target of the catalogue; `unfit` says why this machine is not it (empty: it is)."""

    target: Target
    unfit: str = ""


class Catalogue(Record):
    """The catalogue as it is now, and where it is kept."""

    file: str
    entries: tuple[Entry, ...]


def read(home: Path) -> Catalogue:
    """The site's catalogue.

    Raises:
        SpecInvalid: its file is wrong.
    """
    listed = catalogue.catalogue(home).values()
    return Catalogue(
        file=str(home / catalogue.FILE), entries=tuple(Entry(target=t, unfit=machine.unfit_here(t)) for t in listed)
    )


def detect(home: Path, *, cluster: bool, name: str = "") -> Catalogue:
    """Writes the targets of this machine, or of the cluster's nodes, into the catalogue, and gives those.

    Raises:
        ClusterUnreachable, ClusterRefused, Temporary: the cluster's nodes can't be listed.
        UsageError: one name for several targets.
    """
    found = discovery.of_nodes(KubernetesClient().find(NODE)) if cluster else discovery.detect(machine.this_machine())
    if name and len(found) != 1:
        raise UsageError(
            f"{len(found)} targets were found ({', '.join(one.name for one in found)}), one name was given",
            do="Leave `--name` out.",
        )
    found = tuple(Target.model_validate(one.model_dump() | {"name": name or one.name}) for one in found)
    file = catalogue.save(home, *found)
    return Catalogue(file=str(file), entries=tuple(Entry(target=one, unfit=machine.unfit_here(one)) for one in found))


def show(found: Catalogue) -> None:
    """The catalogue, for a person."""
    table = Table(
        "", "target", "accelerator", "precisions", "server", "runs on", box=None, padding=(0, 2, 0, 0),
        header_style="dim",
    )  # fmt: skip
    for entry in found.entries:
        one = entry.target
        mark = Text("-", style="dim") if entry.unfit else Text("✓", style="green")
        engine = one.server if one.engine == "onnxruntime" else f"{one.server}, {one.engine}"
        hardware = " ".join(part for part in (one.accelerator, one.compute_capability) if part)
        hardware += f" {one.memory_mb} MiB" if one.memory_mb else ""
        place = ", ".join(f"{key}={value}" for key, value in one.node_selector.items())
        table.add_row(
            mark, one.name, hardware, " ".join(one.precisions), engine, place or entry.unfit or "this machine"
        )
    console.stdout.print(table)
    console.stdout.print(found.file, markup=False, style="dim")
