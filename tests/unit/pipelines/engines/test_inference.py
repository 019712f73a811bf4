"""Requests read from files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shiplift.pipelines.engines import inference
from shiplift.runtime.base.errors import DataInvalid, NotFound
from shiplift.runtime.model.tensors import Arrays, dump_npz
from shiplift.runtime.records.tensor import Signature, TensorSpec


def test_a_request_is_read_from_npz_or_json(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(dump_npz({"x": np.arange(3)}))
    (tmp_path / "a.json").write_text(json.dumps({"x": [0, 1, 2]}))
    (tmp_path / "b.json").write_text("[0, 1, 2]")
    requests: list[dict[str, Any]] = [inference.request_arrays(tmp_path / n) for n in ("a.npz", "a.json", "b.json")]
    assert [{name: array.tolist() for name, array in arrays.items()} for arrays in requests] == [
        {"x": [0, 1, 2]},
        {"x": [0, 1, 2]},
        {"": [0, 1, 2]},
    ]


@pytest.mark.parametrize("text", ["", "{", "\x00", '{"x": [[1], [2, 3]]}', "[" * 100_000])
def test_a_request_that_is_neither_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DataInvalid, match="neither NPZ nor JSON"):
        inference.request_arrays(tmp_path / "a.json")


def test_arrays_are_matched_to_inputs_by_name_and_a_single_one_by_itself(tmp_path: Path) -> None:
    zeros, ones = np.zeros(1), np.ones(1)
    x, a, b = (TensorSpec(name=name, datatype="FP32", shape=(-1,)) for name in "xab")
    option = TensorSpec(name="option", datatype="FP32", shape=(-1,), optional=True)
    assert inference.matched({"": zeros}, Signature(inputs=(x, option), outputs=()), tmp_path) == {"x": zeros}
    both = Signature(inputs=(a, b), outputs=())
    assert inference.matched({"b": ones, "a": zeros, "c": zeros}, both, tmp_path) == {"a": zeros, "b": ones}
    with pytest.raises(DataInvalid, match="has no b; the model's inputs are a, b"):
        inference.matched({"a": zeros}, both, tmp_path)


class Server:
    """A server of a model whose versions answer with their own number, the highest to those who name none."""

    def __init__(self, *versions: int) -> None:
        self._versions = list(versions)

    def versions(self, model: str) -> list[int]:
        return self._versions

    def signature(self, model: str) -> Signature:
        return Signature(inputs=(TensorSpec(name="x", datatype="FP32", shape=(-1,)),), outputs=())

    def infer(self, *_: object, version: int | None = None, **__: object) -> Arrays:
        return {"y": np.array([version or max(self._versions)])}


def test_an_earlier_version_is_asked_by_its_number(tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    file.write_bytes(dump_npz({"x": np.zeros(1, np.float32)}))
    for asked, answers in ((None, 3), (2, 2), (3, 3)):
        for sequence in (False, True):
            answer = inference.ask(Server(3, 2), "digits", file, version=asked, sequence=sequence)
            assert (answer.version, answer.outputs["y"]) == (answers, [answers])
    with pytest.raises(NotFound, match="does not serve version 1 of 'digits'; it serves 2, 3"):
        inference.ask(Server(3, 2), "digits", file, version=1)
    with pytest.raises(NotFound, match="production does not serve 'digits'"):
        inference.ask(Server(), "digits", file)
