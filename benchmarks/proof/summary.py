"""A table of the results in a terminal."""

import fnmatch
from collections.abc import Iterator, Sequence
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.proof.results import DEPTHS, Results

_GOALS = {"a": "right or refused", "c": "right"}


def show(results: Results, only: Sequence[str] = (), console: Console | None = None) -> None:
    """Prints how many models and sabotages ended as they should, by depth, and those that did not."""
    screen = console or Console()
    table = Table("part", "depth", "goal", "cases", "good", "bad", "rows", "wrong", "proof s")
    for row in _rows(results):
        table.add_row(*map(str, row))
    screen.print(table)
    for line in _bad(results, only):
        screen.print(line, markup=False)


def _rows(results: Results) -> Iterator[tuple[object, ...]]:
    for depth in DEPTHS:
        for part, goal in _GOALS.items():
            cases = [each for each in results.cases if (each.part, each.depth) == (part, depth)]
            if cases:
                good = sum(each.good for each in cases)
                asked, wrong = sum(each.rows for each in cases), sum(each.wrong + each.unrefused for each in cases)
                proof = f"{median(each.proof_seconds for each in cases):.1f}"
                yield part, depth, goal, len(cases), good, len(cases) - good, asked, wrong, proof
        sabotages = [each for each in results.sabotages if each.depth == depth]
        if sabotages:
            caught = sum(each.caught for each in sabotages)
            yield "b", depth, "caught", len(sabotages), caught, len(sabotages) - caught, "", "", ""


def _bad(results: Results, only: Sequence[str]) -> Iterator[str]:
    for each in results.cases:
        if not each.good and _fits(each.name, only):
            yield f"{each.name} ({each.depth}): {each.outcome}: {each.first or each.reason}"
    for sabotage in results.sabotages:
        if not sabotage.caught and _fits(sabotage.model, only):
            yield f"{sabotage.name} ({sabotage.depth}): not caught: {sabotage.what}"


def _fits(name: str, only: Sequence[str]) -> bool:
    return not only or any(fnmatch.fnmatchcase(name, pattern) for pattern in only)
