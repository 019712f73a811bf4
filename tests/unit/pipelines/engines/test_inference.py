"""Requests read from files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shiplift.pipelines.engines import inference
from shiplift.runtime.base.errors import DataInvalid
from shiplift.runtime.model.tensors import dump_npz
from shiplift.runtime.records.tensor import Signature, TensorSpec


def test_a_request_is_read_from_npz_or_json(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(dump_npz({"x": np.arange(3)}))
    (tmp_path / "a.json").write_text(json.dumps({"x": [0, 1, 2]}))
    (tmp_path / "b.json").write_text("[0, 1, 2]")
    requests: list[dict[str, Any]] = [inference.request_arrays(tmp_path / n) for n in ("a.npz", "a.json", "b.json")]
    assert [{name: array.tolist() for name, array in arrays.items()} for arrays in requests] == [
        {"x": [0, 1, 2]}, {"x": [0, 1, 2]}, {"": [0, 1, 2]},
    ]  # fmt: skip


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
