"""What a task metric is: rows with one entry per sample, and the score of any selection of rows.

Rows are made once, and scored as a whole, per slice and per bootstrap resample.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.base.errors import DataInvalid, MissingTool
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.precision.scoring.bootstrap import Rows
from shiplift.runtime.records.precision import Metric


@dataclass(frozen=True, kw_only=True)
class TaskMetric:
    """A task metric; its range, unit and direction are in `records.precision.SCALES`.

    `takes` says which outputs and labels it takes, with shapes and dtypes, for error messages. `rows` makes arrays with
    one entry per sample from them, or raises Mismatch. `score` is the score of such rows, NaN if they have none (None:
    their mean). `most_rows` bounds a bootstrap resample.
    """

    takes: str
    rows: Callable[[Arrays, NDArray[Any]], Rows]
    score: Callable[..., float] | None = None
    most_rows: int = 10_000


class Mismatch(Exception):
    """Outputs or labels that a metric can't take; the text says which."""


def shapes(outputs: Arrays, labels: NDArray[Any]) -> str:
    """The outputs and labels in words, each with dtype and shape."""
    there = [f"{name} ({_kind(array)} {list(array.shape)})" for name, array in outputs.items()]
    return f"the outputs are {', '.join(there)}, the labels {_kind(labels)} {list(labels.shape)}"


def mismatch(metric: Metric, takes: str, outputs: Arrays, labels: NDArray[Any], why: str = "") -> DataInvalid:
    """The error for outputs and labels that a metric does not take."""
    return DataInvalid(
        f"metric {metric} takes {takes}; {shapes(outputs, labels)}{f': {why}' if why else ''}",
        do="Log labels of that shape and kind, or choose another `data.metric`.",
    )


def library(module: str) -> Any:
    """Imports a module that computes metrics.

    Raises:
        MissingTool: it is not installed here.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingTool(
            f"the metric needs the package {module.partition('.')[0]}, which is not installed here",
            do="Install the extra: `pip install 'shiplift[metrics]'`.",
        ) from error


def _kind(array: NDArray[Any]) -> str:
    return "text" if array.dtype.kind in "OSU" else str(array.dtype)


def first(outputs: Arrays) -> NDArray[Any]:
    """The first output."""
    return next(iter(outputs.values()))


def numbers(outputs: Arrays, labels: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The first output and labels of the same size, both (samples, values).

    Raises:
        Mismatch: one of them has no numbers, or their sizes differ.
    """
    output = first(outputs)
    if output.dtype.kind not in "fiu" or labels.dtype.kind not in "fiub" or output.size != labels.size:
        raise Mismatch
    actual, expected = (array.reshape(len(output), -1).astype(np.float64) for array in (output, labels))
    return actual, expected
