"""Which values the inputs of a graph may have: others are refused in production, as the author's model refuses them."""

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from shiplift.runtime.records.base import Record

MAX_GUARDS, MAX_VALUES = 2_000, 1_000  # of a model, and of a guard; as in `backends/common/guards.h`
MAX_BYTES = 4 << 20  # of all guards of a model: servers read twice as much


class Guard(Record):
    """What the elements of an input may be, or those of one column of its second axis.

    `low` and `high` are the least and the greatest that are taken; None: any. `missing` and `infinite` say whether NaN
    and infinities are taken. `values` are all that are; empty: any. NaN is none of them: that is `missing`.
    """

    input: str
    column: int | None = None
    low: int | float | None = None
    high: int | float | None = None
    missing: bool = True
    infinite: bool = True
    values: tuple[int | float | str, ...] = Field((), max_length=MAX_VALUES)

    def entry(self) -> dict[str, Any]:
        """Its entry in the file that servers read: what it says, without what it leaves open."""
        return self.model_dump(exclude_defaults=True)

    def __str__(self) -> str:
        """For reports: `'age': 0 to 120, no NaN`."""
        where = f"'{self.input}'" if self.column is None else f"'{self.input}' column {self.column}"
        return f"{where}: {', '.join(self._limits())}"

    def _limits(self) -> list[str]:
        low, high = self.low, self.high
        limits = [f"one of {len(self.values)} values"] if self.values else []
        if low is not None and high is not None:
            limits.append(f"{low!r} to {high!r}")
        elif low is not None or high is not None:
            limits.append(f"at least {low!r}" if high is None else f"at most {high!r}")
        return [
            *limits,
            *(["no NaN"] if not self.missing else []),
            *(["nothing infinite"] if not self.infinite else []),
        ]


def told(guards: Sequence[Guard], most: int = 5) -> str:
    """All guards for a sentence, the first ones by name."""
    more = f" and {len(guards) - most} more" if len(guards) > most else ""
    return "; ".join(map(str, guards[:most])) + more
