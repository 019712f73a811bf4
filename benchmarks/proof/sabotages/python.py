"""Sabotages of a Python model's recorded answers, as another process or its neighbours would change them."""

from collections.abc import Callable

import numpy as np

from benchmarks.proof.sabotages.mutation import Files, Mutation
from shiplift.runtime.model.tensors import Arrays, dump_npz, load_npz

_FILE = "answers.npz"
_OF_FIRST = 2  # slashes of `again/output/NAME`, which is of the first row; other sets have their names between

Change = Callable[[Arrays], str | None]


def _of_answers(name: str, change: Change) -> Mutation:
    def apply(files: Files) -> str | None:
        arrays = load_npz(files.folder / _FILE)
        what = change(arrays)
        (files.folder / _FILE).write_bytes(dump_npz(arrays))
        return what

    return Mutation(name=f"python-{name}", of="python", apply=apply, subtle=True)


def other_process(arrays: Arrays) -> str | None:
    """A second process answers as another version would: numbers are 1 % off, texts are others."""
    names = [name for name in _outputs(arrays, "again/") if name.count("/") > _OF_FIRST]
    return "a second process is 1 % off" if _changed(arrays, names) else None


def state_kept(arrays: Arrays) -> str | None:
    """After other rows, the same process answers the first one otherwise."""
    names = [name for name in _outputs(arrays, "again/") if name.count("/") == _OF_FIRST]
    return "the first row is answered otherwise after others" if _changed(arrays, names) else None


def errors_in_second(arrays: Arrays) -> str | None:
    """A second process, which lacks a file, raises for each row."""
    names = [name for name in arrays if name.startswith("again/") and name.endswith("/errors")]
    for name in names:
        arrays[name] = np.full(arrays[name].shape, "Raised: FileNotFoundError: model.bin")
    return "a second process raises" if names else None


def _changed(arrays: Arrays, names: list[str]) -> bool:
    for name in names:
        array = arrays[name]
        if array.dtype.kind in "OSU":
            arrays[name] = np.array([f"{item}." for item in array.ravel()]).reshape(array.shape)
        else:
            arrays[name] = array + np.abs(array) * array.dtype.type(0.01) if array.dtype.kind == "f" else array + 1
    return bool(names)


def neighbours_answer(arrays: Arrays) -> str | None:
    """In a batch, a row gets the answer of the row before it."""
    names = [name for prefix in ("place-", "batch/") for name in _outputs(arrays, prefix)]
    for name in names:
        arrays[name] = np.roll(arrays[name], 1, axis=0)
    return "answers in batches are shifted by a row" if names else None


def outputs_swapped(arrays: Arrays) -> str | None:
    """Two outputs have each other's names in a second process."""
    names = _outputs(arrays, "again/")
    groups = {name.rpartition("/")[0] for name in names}
    for group in groups:
        own = [name for name in names if name.rpartition("/")[0] == group]
        for left, right in zip(own[::2], own[1::2], strict=False):
            arrays[left], arrays[right] = arrays[right], arrays[left]
    return "outputs of a second process are swapped" if len(names) > len(groups) else None


def _outputs(arrays: Arrays, prefix: str) -> list[str]:
    return [name for name in arrays if name.startswith(prefix) and "/output/" in name]


PYTHON = tuple(
    _of_answers(name, change)
    for name, change in {
        "other-process": other_process,
        "state-kept": state_kept,
        "second-process-raises": errors_in_second,
        "neighbours-answer": neighbours_answer,
        "outputs-swapped": outputs_swapped,
    }.items()
)
