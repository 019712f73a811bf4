"""The table of targets that `shiplift targets` prints."""

from rich.table import Table
from rich.text import Text

from shiplift.pipelines.commands import console
from shiplift.pipelines.engines.answers import Catalogue, CatalogueEntry


def show(catalogue: Catalogue) -> None:
    """Prints the catalogue as a table."""
    table = Table(
        "",
        "target",
        "accelerator",
        "precisions",
        "server",
        "runs on",
        box=None,
        padding=(0, 2, 0, 0),
        header_style="dim",
    )
    for entry in catalogue.entries:
        target = entry.target
        engine = target.server if target.engine == "onnxruntime" else f"{target.server}, {target.engine}"
        hardware = " ".join(part for part in (target.accelerator, target.compute_capability) if part)
        hardware += f" {target.memory_mb} MiB" if target.memory_mb else ""
        nodes = ", ".join(f"{key}={value}" for key, value in target.node_selector.items())
        place = nodes or entry.unfit or catalogue.default_place
        table.add_row(_mark(entry), target.name, hardware, " ".join(target.precisions), engine, place)
    console.stdout.print(table)
    console.stdout.print(catalogue.file, markup=False, style="dim")


def _mark(entry: CatalogueEntry) -> Text:
    if entry.unfit is None:
        return Text()
    return Text("-", style="dim") if entry.unfit else Text("✓", style="green")
