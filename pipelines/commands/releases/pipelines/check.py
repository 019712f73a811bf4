"""Checking a pipeline: its file and sources are read, its members looked up, and the result shown."""

from dataclasses import dataclass
from pathlib import Path

import typer
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from shiplift.pipelines.commands import console, edge
from shiplift.pipelines.engines.protocol import PastReleases
from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.composition.check import check
from shiplift.runtime.composition.checked import CheckedPipeline
from shiplift.runtime.composition.drawing import edge_type, mermaid, remarks, runs
from shiplift.runtime.spec.pipeline import PipelineSpec
from shiplift.runtime.store.pipelines import Definition, definition

_WAYS = {"ensemble": "an ensemble: the graph is static", "bls": "BLS, in Triton's Python backend"}


@dataclass(frozen=True, kw_only=True)
class Composed(Definition):
    """A pipeline as it was written and checked."""

    checked: CheckedPipeline


def compose(engine: PastReleases | None, file: Path, text: str) -> Composed:
    """Reads a pipeline's text, looks up its members, and checks it; without an engine, only the graph is checked.

    Raises:
        SpecInvalid: the text is not YAML, or has wrong fields.
        StackDown, Temporary: the stack or the cluster, which knows the members, does not answer.
    """
    pipeline = definition(text, file.parent)
    members = engine.members(pipeline.written.spec) if engine else {}
    checked = check(pipeline.written, members, pipeline.sources)
    return Composed(written=pipeline.written, sources=pipeline.sources, checked=checked)


def flowchart(composed: Composed) -> str:
    """The pipeline as a Mermaid flowchart."""
    return mermaid(composed.written.spec, composed.checked)


def show(composed: Composed) -> None:
    """Draws the graph, its edges, and how it would run."""
    spec, checked = composed.written.spec, composed.checked
    console.stdout.print(_tree(spec, checked))
    table = Table("tensor", "from", "to", "type", box=None, padding=(0, 3, 0, 0), header_style="dim")
    for each in checked.edges:
        table.add_row(each.tensor, each.giver or "(request)", each.taker or "(answer)", escape(edge_type(each)))
    console.stdout.print(table)
    console.echo(f"runs as {_WAYS[checked.way]}{_because(checked)}")
    if checked.workers:
        console.echo(f"its Python steps run in {checked.workers} worker processes (`workers` in the file)")
    if checked.digest:
        console.echo(f"bundle {checked.digest}")


def end(composed: Composed, *, told: bool) -> None:
    """Lists the mistakes, unless the result has already `told` them, and exits with an error if there are any."""
    problems = composed.checked.problems
    if problems and not told:
        for problem in problems:
            edge.say(str(problem))
    if problems:
        raise typer.Exit(SpecInvalid.exit_code)


def require_sound(composed: Composed) -> None:
    """Refuses a pipeline with mistakes.

    Raises:
        SpecInvalid: its check found mistakes; the message lists them.
    """
    if problems := composed.checked.problems:
        raise SpecInvalid("\n".join(map(str, problems)), do="Fix all of them. Nothing was done.")


def _because(checked: CheckedPipeline) -> str:
    return f": {'; '.join(checked.reasons)}" if checked.reasons else ""


def _tree(spec: PipelineSpec, checked: CheckedPipeline) -> Tree:
    """The steps in the order in which they run, each with what it runs, takes and gives."""
    members = {member.name: member for member in checked.members}
    tree = Tree(f"{escape(spec.name)}  ({', '.join(spec.inputs)}) -> ({', '.join(spec.outputs)})")
    for name in checked.order or spec.steps:
        step = spec.steps[name]
        gives = f"({', '.join(step.inputs.values())}) -> ({', '.join(step.gives)})"
        branch = tree.add(escape(f"{name}: {runs(step, members)}  {gives}"))
        for remark in remarks(step):
            branch.add(escape(remark), style="dim")
    return tree
