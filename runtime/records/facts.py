"""What is known of a model's inputs: declared by the contract, and read from the fitted model itself."""

from pydantic import Field

from shiplift.runtime.records.base import Record
from shiplift.runtime.records.tensor import TensorSpec

MAX_THRESHOLDS, MAX_CATEGORIES, MAX_WORDS = 2_000, 1_000, 500  # of a column
MAX_VALUES = 50_000  # thresholds of a model: 1 MB of JSON
MAX_BOXES, MAX_BOUNDS = 2_000, 20_000  # of a model: its leaves, and their sides: 0.5 MB of JSON

Bound = tuple[int, float | None, float | None]  # a column's place in `columns`; above the first, and up to the second


class ColumnFacts(Record):
    """What a model's parameters say about one column of its inputs, in the unit that clients send.

    `index` is the column's place on the second axis of a matrix; None: it holds for every element of the input.
    `thresholds` are where the answer may jump: splits of trees, edges of bins. `categories` are those seen in training.
    `sentinels` are values that stand for a missing one. `words` are of a vocabulary. `table_rows` is the size of the
    table that ids look up: they end at one less. `missing` and `infinite` say whether the model takes NaN and
    infinities; None: unknown.
    """

    input: str
    index: int | None = None
    thresholds: tuple[float, ...] = Field((), max_length=MAX_THRESHOLDS)
    categories: tuple[bool | int | float | str, ...] = Field((), max_length=MAX_CATEGORIES)
    sentinels: tuple[float | str, ...] = Field((), max_length=16)
    words: tuple[str, ...] = Field((), max_length=MAX_WORDS)
    table_rows: int | None = None
    missing: bool | None = None
    infinite: bool | None = None


class ModelFacts(Record):
    """The inputs of a model, and what it says about their columns; a column that it says nothing about is left out.

    `boxes` are leaves of trees: a row within all bounds of one reaches it. A leaf's first bound is of its
    last split.
    `notes` say what could not be read, or was too much to keep, in plain sentences.
    """

    inputs: tuple[TensorSpec, ...]
    columns: tuple[ColumnFacts, ...] = ()
    boxes: tuple[tuple[Bound, ...], ...] = Field((), max_length=MAX_BOXES)
    notes: tuple[str, ...] = ()
