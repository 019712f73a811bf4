"""Inputs without columns, such as images, embeddings and sequences of tokens: each question is a whole tensor."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.proof.questions.column import Candidates, Column, ColumnKind
from shiplift.runtime.proof.questions.integers import Flags
from shiplift.runtime.proof.questions.numbers import fitting

_MOST = 24  # values of an origin that one element is set to
_SCALES = (0.5, 2.0, -1.0)


@dataclass(frozen=True)
class Whole:
    """Tensors whose elements are of the kind `element`: all of them one value, drawn anew, or one of them changed."""

    element: ColumnKind

    def recognises(self, column: Column) -> bool:
        """Whether a row has several elements, all of the kind."""
        return column.shape != () and self.element.recognises(_element(column))

    def candidates(self, column: Column, rng: np.random.Generator) -> Candidates:
        """Known tensors with one element changed, by the element's origins; and tensors of one value, or scaled."""
        one = _element(column)
        if not np.prod(column.shape):
            return {}
        special = self.element.candidates(one, rng)
        changed = {origin: _with_one(column, values[:_MOST], rng) for origin, values in special.items()}
        return changed | {"tensor": _constant(column, special.get("range", np.empty(0, column.dtype))[:3], rng)}

    def sample(self, column: Column, count: int, rng: np.random.Generator) -> NDArray[Any]:
        """Tensors whose elements are drawn one by one."""
        return self.element.sample(_element(column), count * int(np.prod(column.shape)), rng).reshape(
            (count, *column.shape)
        )


class Masks:
    """Tensors of 0 and 1, such as attention masks: ones, then zeros. All zeros mean nothing to a model."""

    def recognises(self, column: Column) -> bool:
        """Whether a row has several elements, all known to be 0 or 1."""
        return column.shape != () and Flags().recognises(_element(column))

    def candidates(self, column: Column, rng: np.random.Generator) -> Candidates:
        """Prefixes of ones, the longest first."""
        size = column.shape[-1]
        lengths = range(1, size + 1) if 0 < size <= _MOST else np.linspace(1, size, _MOST if size else 0).astype(int)
        return {"tensor": _prefixes(column, np.asarray(lengths[::-1]))}

    def sample(self, column: Column, count: int, rng: np.random.Generator) -> NDArray[Any]:
        """Known masks, and prefixes of ones of any length."""
        known = column.known[rng.integers(0, len(column.known), count)]
        drawn = _prefixes(column, rng.integers(1, max(2, column.shape[-1] + 1), count))
        chosen = (rng.random(count) < 0.5).reshape(-1, *(1 for _ in column.shape))
        return np.where(chosen, known, drawn).astype(column.dtype)


def _element(column: Column) -> Column:
    return replace(column, shape=(), known=column.known.reshape(-1))


def _prefixes(column: Column, lengths: NDArray[Any]) -> NDArray[Any]:
    ones = np.arange(column.shape[-1]) < lengths.reshape(-1, *(1 for _ in column.shape))
    return np.broadcast_to(ones, (len(lengths), *column.shape)).astype(column.dtype)


def _bases(column: Column, count: int, rng: np.random.Generator) -> NDArray[Any]:
    if not len(column.known):
        return np.zeros((count, *column.shape), column.dtype)
    return np.array(column.known[rng.integers(0, len(column.known), count)], dtype=column.dtype)


def _with_one(column: Column, values: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """Known tensors, each with one of `values` at a place of its own."""
    made = _bases(column, len(values), rng).reshape(len(values), int(np.prod(column.shape)))
    made[np.arange(len(values)), rng.integers(0, made.shape[1], len(values))] = values
    return made.reshape((len(values), *column.shape))


def _constant(column: Column, values: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """Tensors of one value; of floats also known ones, scaled."""
    constant = np.empty((len(values), *column.shape), column.dtype)
    constant[:] = values.reshape(-1, *(1 for _ in column.shape))
    if column.dtype.kind != "f":
        return constant
    scaled = [fitting(_bases(column, 1, rng).astype(np.float64) * by, column.dtype) for by in (*_SCALES, 0.0)]
    return np.concatenate([constant, *scaled])
