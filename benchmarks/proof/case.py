"""A model to release: how it is logged, which fresh rows it is asked, and what its author says to them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from benchmarks.zoo.answers import named
from shiplift.runtime.model.tensors import Arrays

Part = Literal["a", "c"]
Form = Literal["graph", "trees", "python"]
ROWS = 2000


@dataclass(frozen=True, kw_only=True)
class Logged:
    """A model and how it is logged: `options` of `mlflow.FLAVOR.log_model`, which also takes the model itself.

    `rows` makes that many fresh rows from a seed, as `mlflow.pyfunc` takes them. `answer` turns its prediction into
    arrays by output name ("" is the first output). `more` has what the model within pyfunc's answers besides, such as a
    classifier's probabilities. `original` answers in place of pyfunc where that does not take the model's inputs or
    outputs. `validation` are labelled rows to log beside it, by input name, with `label`.
    """

    model: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)
    rows: Callable[[int, int], Any]
    answer: Callable[[Any], Arrays] = named
    more: Callable[[Any, Any], Arrays] | None = None
    original: Callable[[Any], Arrays] | None = None
    validation: Mapping[str, NDArray[Any]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A line of the table. `flavor` is the module of MLflow that logs what `build` makes in an empty folder.

    A case of part `a` may be promoted right or refused by the proof. One of part `c` has to be promoted, as one of
    `forms`, and in batches unless `batches` is false. With `alone` its author's model is asked each row by itself,
    because its rows mix. `spec` is its release spec, `needs` are the modules that have to be installed. What `before`
    builds is released first, and deleted: a model of another content had the name and number.
    """

    name: str
    part: Part
    flavor: str
    about: str
    build: Callable[[Path], Logged]
    forms: tuple[Form, ...] = ("graph",)
    batches: bool = True
    alone: bool = False
    spec: str = ""
    needs: tuple[str, ...] = ()
    before: Callable[[Path], Logged] | None = None
    fresh: int = ROWS
