"""One column of a model's inputs: what is known of its values, and the protocol of what makes questions about it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.model.tensors import numpy_type
from shiplift.runtime.records.facts import ColumnFacts
from shiplift.runtime.records.tensor import Datatype

Candidates = Mapping[str, NDArray[Any]]  # by origin: values to ask, (count, *shape), the most telling first


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column, or a whole tensor that has none.

    `known` are its values in known rows, (rows, *shape); `shape` is that of one value: () for a column. `index` is its
    place on the second axis of the input; None: it is the whole input. `coarse`: of FP64, what is served tells only
    values apart that differ in FP32.
    """

    input: str
    index: int | None
    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    known: NDArray[Any]
    facts: ColumnFacts
    coarse: bool = False

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of its values; texts are objects."""
        return numpy_type(self.datatype)

    @property
    def compared(self) -> np.dtype[Any]:
        """The dtype in which values are next to each other."""
        return np.dtype(np.float32) if self.coarse and self.dtype == np.float64 else self.dtype

    def put(self, array: NDArray[Any], rows: NDArray[np.intp], values: NDArray[Any]) -> None:
        """Sets the column in these rows of its input's array to `values`, (rows, *shape)."""
        if self.index is None:
            array[rows] = values
        else:
            array[rows, self.index] = values


class ColumnKind(Protocol):
    """A kind of column: which values tell a wrong model from a right one, and which are ordinary."""

    def recognises(self, column: Column) -> bool:
        """Whether the column is of this kind."""
        ...

    def candidates(self, column: Column, rng: np.random.Generator) -> Candidates:
        """Special values by origin, in the column's dtype."""
        ...

    def sample(self, column: Column, count: int, rng: np.random.Generator) -> NDArray[Any]:
        """`count` ordinary values of the column's own range, (count, *shape), in its dtype."""
        ...


def texts(values: list[str]) -> NDArray[Any]:
    """Texts as an array of objects, each once, in their order."""
    unique = list(dict.fromkeys(values))
    array = np.empty(len(unique), object)
    array[:] = unique
    return array


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """The values, each once and in their order; 0.0 and -0.0 are two."""
    bits = values.view(f"u{values.dtype.itemsize}") if values.dtype.kind == "f" else values
    _, first = np.unique(bits, return_index=True)
    return values[np.sort(first)]
