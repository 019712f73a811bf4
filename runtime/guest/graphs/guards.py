"""Which values a graph takes: what its author's model refuses, is refused before the graph could answer it.

`guards.json` beside a model lists its guards. Each is about an input, or one `column` of its second axis, and has some
of `low` and `high` (both are taken), `missing` and `infinite` (whether NaN and infinities are taken), and `values` (all
that are taken; NaN is none of them, and is taken if `missing` is). The backends in C read the same file:
`backends/common/guards.h`.

Process: the model's own process, as `guards.py`; and the host, which proves with it.
Python: the server's
Packages: numpy
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

FILE = "guards.json"
_SHOWN, _TEXT = 8, 60  # values that a reason lists, and characters of each

Array = NDArray[Any]


class Guard:
    """One guard, from its entry in the file."""

    def __init__(self, entry: Mapping[str, Any]) -> None:
        self.input: str = entry["input"]
        self.column: int | None = entry.get("column")
        self.low, self.high = entry.get("low"), entry.get("high")
        self.missing: bool = entry.get("missing", True)
        self.infinite: bool = entry.get("infinite", True)
        self.values = list(entry.get("values", ()))
        self._texts = frozenset(value for value in self.values if isinstance(value, str))

    def outside(self, array: Array) -> NDArray[np.bool_]:
        """Which elements of the input's array are refused, in the shape of what the guard is about: (rows, ...)."""
        values = array if self.column is None else array[:, self.column]
        if values.dtype.kind in "OSU":
            known = [value in self._texts for value in values.ravel()]
            return ~np.array(known, dtype=np.bool_).reshape(values.shape)
        if values.dtype.kind != "f":
            return self._beyond(values)
        missing, infinite = np.isnan(values), np.isinf(values)
        off = self._beyond(values) & ~missing
        off |= missing & (not self.missing)
        return off | (infinite & (not self.infinite))

    def _beyond(self, values: Array) -> NDArray[np.bool_]:
        off = np.zeros(values.shape, dtype=np.bool_)
        if self.low is not None:
            off |= values < self.low
        if self.high is not None:
            off |= values > self.high
        if self.values:
            off |= ~np.isin(values, np.array(self.values).astype(values.dtype))
        return off

    def reason(self, array: Array) -> str:
        """Why an array is refused: the first row, its value, and what to send. Empty: it isn't."""
        off = self.outside(array)
        if not off.any():
            return ""
        at = tuple(int(place) for place in np.argwhere(off)[0])
        values = array if self.column is None else array[:, self.column]
        column = self.column if self.column is not None else (at[1] if array.ndim == 2 and array.shape[1] > 1 else None)
        where = f", column {column}" if column is not None else ""
        value = values[at]
        return f"input '{self.input}', row {at[0]}{where} is {_shown(value)}{self._against(value)}"

    def _against(self, value: Any) -> str:
        number = isinstance(value, np.floating)
        if number and np.isnan(value):
            return ", which is not taken: send a number"
        if number and np.isinf(value) and not self.infinite:
            return ", which is not taken: send a finite number"
        if self.low is not None and value < self.low:
            return f", and the least that the model takes is {self.low!r}"
        if self.high is not None and value > self.high:
            return f", and the most that the model takes is {self.high!r}"
        return f", none of the {len(self.values)} values that the model takes: send {self._few()}"

    def _few(self) -> str:
        shown = ", ".join(map(_shown, self.values[:_SHOWN]))
        return f"one of {shown}, ..." if len(self.values) > _SHOWN else f"one of {shown}"


class Guards:
    """All guards of a model."""

    def __init__(self, entries: Iterable[Mapping[str, Any]]) -> None:
        self.all = [Guard(entry) for entry in entries]

    @classmethod
    def read(cls, file: str) -> Guards:
        """The guards in a file."""
        with open(file, encoding="utf-8") as text:
            return cls(json.load(text))

    def refused(self, inputs: Mapping[str, Array]) -> NDArray[np.bool_]:
        """Which rows are refused, (rows,)."""
        off = np.zeros(len(next(iter(inputs.values()))), dtype=np.bool_)
        for guard in self.all:
            outside = guard.outside(inputs[guard.input])
            off |= outside.any(axis=tuple(range(1, outside.ndim)))
        return off

    def reason(self, inputs: Mapping[str, Array]) -> str:
        """Why these inputs are refused; empty if they aren't."""
        return next(filter(None, (guard.reason(inputs[guard.input]) for guard in self.all)), "")


def _shown(value: Any) -> str:
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= _TEXT else f"{text[: _TEXT - 3]}..."
