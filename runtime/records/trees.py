"""A forest of decision trees as a file of its own, and how its scores become the model's answers."""

from typing import Literal

from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.base import Record

CHECKPOINT = "checkpoint.tl"
SPLITS = "splits"  # an array beside a forest's questions: `model.splits` says what it holds
NOT_EXACT = "Not served as exact trees: {why}."  # a note of an export
Content = Literal["class", "scores"]


class TreesForm(Record):
    """How a treelite checkpoint answers as its author's model does.

    `features` is the type that features are rounded to before they are compared with thresholds; with `zero_within`,
    those up to this size are compared as 0. `answers` says what each output holds: the class of a row, or its scores.
    A row has so many `scores` (None: as many as its output); a binary classifier may have one, and an output with what
    is left of 1, too. Of several scores, the class is the first that is largest; of one, whether it is over `threshold`
    (None: 0.5). With `subtracted_from`, an only score is answered as this number less the score. `classes` are the
    values of the classes; without any they are counted from 0. A `classifier` has classes, whether or not an output
    holds them.
    """

    features: Literal["FP32", "FP64"] = "FP32"
    zero_within: float | None = None
    answers: dict[str, Content]
    scores: int | None = None
    classifier: bool = False
    threshold: float | None = None
    subtracted_from: float | None = None
    classes: tuple[int, ...] = ()


class ExactTrees(Record):
    """A forest's files (a tree holding `checkpoint.tl`) and its form."""

    files: Artifact
    form: TreesForm
