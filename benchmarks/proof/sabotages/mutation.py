"""A way to sabotage an export."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Of = Literal["graph", "trees", "front", "python"]


@dataclass(frozen=True, kw_only=True)
class Files:
    """The folder that a proof is given, and the graph in it that would be served."""

    folder: Path
    graph: Path


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """Changes files that a proof is given; `apply` says what it did, None if there is nothing to change.

    What is `subtle` changes answers to so few rows that fresh ones may not show it.
    """

    name: str
    of: Of
    apply: Callable[[Files], str | None]
    subtle: bool = False
