"""A forest of decision trees as a file of its own, and how its scores become the model's answers."""

from typing import Literal

from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.base import Record

Content = Literal["class", "scores"]


class TreesForm(Record):
    """How a treelite checkpoint answers as its author's model does.

    `features` is the type that features are rounded to before they are compared with thresholds. `answers` says what
    each output holds: the class of a row, or its scores. Of several scores, the class is the first that is largest; of
    one, whether it is over `threshold` (None: 0.5). `classes` are the values of the classes; without any they are
    counted from 0. A `classifier` has classes, whether or not an output holds them.
    """

    features: Literal["FP32", "FP64"] = "FP32"
    answers: dict[str, Content]
    classifier: bool = False
    threshold: float | None = None
    classes: tuple[int, ...] = ()


class ExactTrees(TreesForm):
    """The same with its files (a tree holding `checkpoint.tl`)."""

    files: Artifact
