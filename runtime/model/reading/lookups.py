"""How large the tables are that a PyTorch model looks ids up in, and at which numbers its answers have steps.

It is run once, and every look-up, comparison and whole quotient is seen.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.records.facts import ColumnFacts, ModelFacts
from shiplift.runtime.records.tensor import TensorSpec

_LOOKUPS = {  # by torch's operator: the places of the table and of the ids among its arguments
    "aten::embedding": (0, 1),
    "aten::_embedding_bag": (0, 1),
    "aten::_embedding_bag_forward_only": (0, 1),
    "aten::index_select": (0, 2),
    "aten::index": (0, 1),
}

_STEPS = ("floor_divide", "remainder", "fmod", "gt", "ge", "lt", "le", "eq", "ne")  # between a tensor and a number
_MULTIPLES, _MOST_STEPS, _BEYOND = np.arange(-6, 7), 64, 10.0  # times the example's largest number

Lookup = tuple[int, NDArray[Any]]  # the table's rows, and the ids


def facts_of(run: Callable[[], Any], inputs: tuple[TensorSpec, ...], example: Arrays) -> ModelFacts:
    """Which inputs are ids, and of how large a table. `run` runs the model on `example`, whose ids should differ.

    Ids are recognised as an input, or as a column of one, that is looked up as it is. Steps are asked in all inputs of
    floats that reach as far.
    """
    tables: dict[tuple[str, int | None], int] = {}
    try:
        seen, steps = _seen(run)
    except Exception as error:  # the author's model may do anything that torch can't watch, and facts only help
        note = f"The model's look-ups could not be watched: {' '.join(str(error).split())[:200]}."
        return ModelFacts(inputs=inputs, notes=(note,))
    for rows, ids in seen:
        for place in _places(ids, inputs, example):
            tables[place] = min(rows, tables.get(place, rows))
    columns = (ColumnFacts(input=name, index=at, table_rows=rows) for (name, at), rows in tables.items())
    return ModelFacts(inputs=inputs, columns=(*columns, *_stepped(steps, inputs, example)))


def _stepped(steps: list[float], inputs: tuple[TensorSpec, ...], example: Arrays) -> Iterator[ColumnFacts]:
    """Inputs of floats, with the steps and their multiples as thresholds."""
    values = np.unique(np.multiply.outer(np.unique(steps)[:_MOST_STEPS], _MULTIPLES)) if steps else np.empty(0)
    for spec in inputs:
        array = example[spec.name]
        if array.dtype.kind == "f" and array.size:
            largest = float(np.abs(np.where(np.isfinite(array), array, 0)).max())
            near = values[np.abs(values) <= _BEYOND * max(largest, 1.0)]
            if len(near):
                yield ColumnFacts(input=spec.name, thresholds=tuple(near.tolist()))


def _seen(run: Callable[[], Any]) -> tuple[list[Lookup], list[float]]:
    """The look-ups of one run, and the numbers of its steps, by modules, exported programs and scripts."""
    import torch  # noqa: PLC0415 - only for torch models
    from torch.utils._python_dispatch import TorchDispatchMode  # noqa: PLC0415

    seen: list[Lookup] = []
    steps: list[float] = []

    class Watch(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            seen.extend(_lookups(func._schema.name, args))
            steps.extend(_steps(func._schema.name, args, kwargs or {}))
            return func(*args, **(kwargs or {}))

    with torch.no_grad(), Watch():
        run()
    return seen, steps


def _steps(operator: str, args: Any, options: Mapping[str, Any]) -> Iterator[float]:
    """The number that an operator compares with, or divides by to a whole quotient; of a quotient, 0 is not a step."""
    name = operator.removeprefix("aten::")
    number: Any = args[1] if len(args) > 1 else None
    number = number.item() if getattr(number, "dim", lambda: 1)() == 0 else number
    known = isinstance(number, float | int) and not isinstance(number, bool) and np.isfinite(number)
    if known and (name in _STEPS or (name == "div" and options.get("rounding_mode"))):
        yield float(number)


def _lookups(operator: str, args: Any) -> Iterator[Lookup]:
    """The look-up that an operator makes, if it makes one in the first axis of a table."""
    if operator not in _LOOKUPS:
        return
    table, ids = (args[place] for place in _LOOKUPS[operator])
    if isinstance(ids, list | tuple):
        ids = ids[0]
    if ids is not None and table.dim() > 1 and not ids.dtype.is_floating_point and ids.dtype.itemsize > 1:
        yield int(table.shape[0]), ids.detach().cpu().numpy().copy()


def _places(ids: NDArray[Any], inputs: tuple[TensorSpec, ...], example: Arrays) -> Iterator[tuple[str, int | None]]:
    """The inputs, and the columns of matrices, that have these values."""
    for spec in inputs:
        array = example[spec.name]
        if array.dtype.kind not in "iu":
            continue
        if _equal(array, ids):
            yield spec.name, None
        elif array.ndim == 2:
            yield from ((spec.name, at) for at in range(array.shape[1]) if _equal(array[:, at], ids))


def _equal(array: NDArray[Any], ids: NDArray[Any]) -> bool:
    return array.size == ids.size and bool(np.array_equal(array.ravel(), ids.ravel()))
