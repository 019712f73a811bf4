"""A table of the results in a terminal."""

import fnmatch
from collections.abc import Sequence
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.proof.results import Results

_GOALS = {"a": "served right, or refused", "c": "served right, not refused or demoted"}


def show(results: Results, only: Sequence[str] = (), console: Console | None = None) -> None:
    """Prints how many models and sabotages ended as they should, by depth, and those that did not."""
    screen = console or Console()
    table = Table("part", "depth", "goal", "cases", "good", "not good", "rows asked", "rows wrong", "proof s")
    for depth in ("exported", "released"):
        for part, goal in _GOALS.items():
            cases = [each for each in results.cases if (each.part, each.depth) == (part, depth)]
            if cases:
                good = sum(each.good for each in cases)
                rows, wrong = sum(each.rows for each in cases), sum(each.wrong + each.unrefused for each in cases)
                proof = median(each.proof_seconds for each in cases)
                numbers = (len(cases), good, len(cases) - good, rows, wrong, f"{proof:.1f}")
                table.add_row(part, depth, goal, *map(str, numbers))
        sabotages = [each for each in results.sabotages if each.depth == depth]
        if sabotages:
            caught = sum(each.caught for each in sabotages)
            table.add_row(
                "b", depth, "sabotages caught", *map(str, (len(sabotages), caught, len(sabotages) - caught)), "", "", ""
            )
    screen.print(table)
    for each in results.cases:
        if not each.good and _fits(each.name, only):
            screen.print(f"{each.name} ({each.depth}): {each.outcome}: {each.first or each.reason}", markup=False)
    for sabotage in results.sabotages:
        if not sabotage.caught and _fits(sabotage.model, only):
            screen.print(f"{sabotage.name} ({sabotage.depth}): not caught: {sabotage.what}", markup=False)


def _fits(name: str, only: Sequence[str]) -> bool:
    return not only or any(fnmatch.fnmatchcase(name, pattern) for pattern in only)
