"""Sabotages of what a text generator is served from: its graph of OpenVINO, its tokenizer, and its settings."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.proof.sabotages.fronts import ids_off_by_one
from benchmarks.proof.sabotages.mutation import Files, Mutation

_FOLDER = Path("written/model")
_PENALTY = 1.5
_AFTER = 3  # positions that are right

Change = Callable[[Path], str | None]


def _graph(folder: Path, change: Callable[[Any], str | None]) -> str | None:
    """Changes the graph, which OpenVINO reads and writes."""
    import openvino

    file = folder / "openvino_model.xml"
    model = openvino.Core().read_model(file)
    what = change(model)
    openvino.save_model(model, folder / "sabotaged.xml", compress_to_fp16=False)
    del model  # which maps the file of weights
    for end in ("xml", "bin"):
        (folder / f"sabotaged.{end}").replace(folder / f"openvino_model.{end}")
    return what


def positions_off(folder: Path) -> str | None:
    """Every position after the first few is one too low, so that two tokens have the same."""

    def change(model: Any) -> str:
        from openvino import opset13 as ops

        given = model.input("position_ids").get_node()
        readers = given.output(0).get_target_inputs()
        late = ops.convert(ops.greater(given, ops.constant(_AFTER, np.int64)), "i64")
        moved = ops.subtract(given, late)
        for reader in readers:
            reader.replace_source_output(moved.output(0))
        return f"positions after {_AFTER} are one lower"

    return _graph(folder, change)


def weights_moved(folder: Path) -> str | None:
    """The rows of the largest tensor of weights are off by one."""

    def change(model: Any) -> str | None:
        from openvino import opset13 as ops

        constants = [node for node in model.get_ops() if node.get_type_name() == "Constant" and node.data.ndim > 1]
        floats = [node for node in constants if node.data.dtype == np.float32]
        largest = max(floats, key=lambda node: int(node.data.size))
        moved = ops.constant(np.roll(largest.data.copy(), 1, axis=0))
        for reader in largest.output(0).get_target_inputs():
            reader.replace_source_output(moved.output(0))
        return f"the rows of {largest.get_friendly_name()} are off by one"

    return _graph(folder, change)


def stop_wrong(folder: Path) -> str | None:
    """A token that the model generates ends the answer."""
    answers = json.loads((folder.parent / "answers.json").read_text())
    token = next(each["tokens"][1] for each in answers if len(each["tokens"]) > 1)
    return _setting(folder, "stop_ids", [token])


def stop_missing(folder: Path) -> str | None:
    """No token ends the answer."""
    return _setting(folder, "stop_ids", [])


def penalty_changed(folder: Path) -> str | None:
    """Repeated tokens are less likely than the author set."""
    return _setting(folder, "repetition_penalty", _PENALTY)


def _setting(folder: Path, name: str, value: Any) -> str:
    file = folder / "generation.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {name: value}))
    return f"{name} is {value}"


def words_off(folder: Path) -> str | None:
    """The tokenizer's ids are off by one."""
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    what = ids_off_by_one(tokenizer)
    file.write_text(json.dumps(tokenizer))
    return what


def _of_folder(name: str, change: Change) -> Mutation:
    def apply(files: Files) -> str | None:
        return change(files.folder / _FOLDER)

    return Mutation(name=f"generation-{name}", of="generation", apply=apply)


GENERATION = tuple(
    _of_folder(name, change)
    for name, change in {
        "positions-off-by-one": positions_off,
        "weights-moved": weights_moved,
        "stop-token-wrong": stop_wrong,
        "stop-token-missing": stop_missing,
        "penalty-changed": penalty_changed,
        "ids-off-by-one": words_off,
    }.items()
)
