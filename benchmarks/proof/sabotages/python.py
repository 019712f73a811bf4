"""Sabotages of a Python model's recorded answers, as another process or its neighbours would change them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.proof.sabotages.mutation import Mutation
from shiplift.runtime.model.tensors import Arrays, dump_npz, load_npz

_FILE = "answers.npz"

Change = Callable[[Arrays], str | None]


def _of_answers(name: str, change: Change) -> Mutation:
    def apply(folder: Path) -> str | None:
        arrays = load_npz(folder / _FILE)
        what = change(arrays)
        (folder / _FILE).write_bytes(dump_npz(arrays))
        return what

    return Mutation(name=f"python-{name}", apply=apply, dropped="notes", subtle=True)


def other_process(arrays: Arrays) -> str | None:
    """A second process answers as another version would: 1 % off."""
    for name, array in arrays.items():
        if name.startswith("again/output/") and array.dtype.kind == "f":
            arrays[name] = array * array.dtype.type(1.01)
            return f"{name} is 1 % off"
    return None


def neighbours_answer(arrays: Arrays) -> str | None:
    """In a batch, a row gets the answer of the row before it."""
    for name, array in arrays.items():
        if name.startswith("batch/output/"):
            arrays[name] = np.roll(array, 1, axis=0)
            return f"{name} is shifted by a row"
    return None


def outputs_swapped(arrays: Arrays) -> str | None:
    """Two outputs have each other's names in a second process."""
    names = [name for name in arrays if name.startswith("again/output/")]
    if len(names) < 2:
        return None
    left, right = names[:2]
    arrays[left], arrays[right] = arrays[right], arrays[left]
    return f"{left} and {right} are swapped"


PYTHON = tuple(
    _of_answers(name, change)
    for name, change in {
        "other-process": other_process,
        "neighbours-answer": neighbours_answer,
        "outputs-swapped": outputs_swapped,
    }.items()
)
