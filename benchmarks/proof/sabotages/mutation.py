"""A way to sabotage an export."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """Changes files of the folder that a proof is given; `apply` says what it did, None if there is nothing to change.

    `dropped` is the field of the proof's result that says why the sabotaged form is not served. What is `subtle`
    changes answers to so few rows that fresh ones may not show it.
    """

    name: str
    apply: Callable[[Path], str | None]
    dropped: str = "differs"
    subtle: bool = False
