"""Logged texts as a graph's inputs, and logged labels as the numbers of its classes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.base.errors import DataInvalid
from shiplift.runtime.model.tensors import Arrays, text_of
from shiplift.runtime.model.text.fronts import load_front


def tokenized(texts: Arrays, labels: NDArray[Any] | None, front: Path, name: str) -> tuple[Arrays, NDArray[Any] | None]:
    """The tokens of a data file's texts, and the labels as numbers if they are the model's names.

    Raises:
        DataInvalid: the model can't take a text, or has no class with a label's name.
    """
    around, refused = load_front(front)
    try:
        inputs = around.feeds(around.encode(around.read(around.samples(texts))))
    except refused as error:
        raise DataInvalid(f"{name} has a sample that the model can't take: {error}", do="Leave it out.") from error
    named = labels is not None and labels.dtype.kind in "OSU" and around.settings.get("labels")
    return inputs, _numbers(labels, around.settings["labels"], name) if named and labels is not None else labels


def _numbers(labels: NDArray[Any], classes: Sequence[str], name: str) -> NDArray[Any]:
    numbers = {label: at for at, label in enumerate(classes)}
    names = [text_of(item) for item in labels.reshape(-1)]
    if unknown := next((label for label in names if label not in numbers), None):
        raise DataInvalid(
            f"{name} has the label {unknown!r}; the model's are {', '.join(classes[:20])}",
            do="Log the labels as the model names them, or their numbers.",
        )
    return np.array([numbers[label] for label in names])
