"""Graphs quantized by the real NNCF: what it writes, and what it can't write."""

import builtins
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from shiplift.runtime.base.errors import MissingTool, QuantizeFailed
from shiplift.runtime.model import onnx_models, openvino_models
from shiplift.runtime.precision import nncf_graphs
from shiplift.runtime.spec.target import Target
from tests.unit.runtime.precision.test_openvino_rungs import model
from tests.unit.steps.test_quantize import Bench

RNG = np.random.default_rng(0)
WEIGHTS = RNG.normal(size=(4, 3)).astype(np.float32)
INPUTS = {"x": RNG.normal(size=(16, 4)).astype(np.float32)}


@pytest.fixture
def product(tmp_path: Path) -> Path:
    return model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": WEIGHTS}, tmp_path / "model.onnx")


@pytest.mark.parametrize("narrow", [False, True])
def test_both_engines_run_its_graph_and_answer_nearly_the_same(product: Path, tmp_path: Path, narrow: bool) -> None:
    file = nncf_graphs.quantize(product, INPUTS, tmp_path / "int8.onnx", attentive=False, narrow=narrow)
    kinds = {node.op_type for node in onnx.load(file).graph.node}
    assert {"QuantizeLinear", "DequantizeLinear", "MatMul"} <= kinds
    right = INPUTS["x"] @ WEIGHTS
    for running in (onnx_models.session(file), openvino_models.session(file, ("y",), "int8")):
        answer = onnx_models.answer(running, INPUTS)["y"]
        assert np.linalg.norm(answer - right) < 0.2 * np.linalg.norm(right)  # it cuts outliers of so few samples


def test_a_model_over_the_limit_is_refused_with_both_sizes(
    product: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nncf_graphs, "_LARGEST_BYTES", 0)
    with pytest.raises(QuantizeFailed, match="the model has 0 MiB, the limit is 0"):
        nncf_graphs.quantize(product, INPUTS, tmp_path / "int8.onnx", attentive=False, narrow=False)


def test_what_it_can_not_read_is_a_reason(tmp_path: Path) -> None:
    file = model([helper.make_node("Unknown", ["x"], ["y"], domain="com.example")], {}, tmp_path / "model.onnx")
    with pytest.raises(QuantizeFailed, match="int8 by NNCF can't be built"):
        nncf_graphs.quantize(file, INPUTS, tmp_path / "int8.onnx", attentive=False, narrow=False)


def test_without_nncf_the_error_says_how_to_get_it(
    product: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "nncf":
            raise ImportError(name)
        return imported(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingTool, match="NNCF is not installed"):
        nncf_graphs.quantize(product, INPUTS, tmp_path / "int8.onnx", attentive=False, narrow=False)


@pytest.mark.slow
def test_the_sandbox_that_quantizes_lets_it_work(tmp_path: Path) -> None:
    """Of 40,000 hidden neurons: over the size from which NNCF is tried."""
    bench = Bench(tmp_path, hidden=40_000)
    target = Target(precisions=("fp32", "int8"))
    few = bench.datasets(input=bench.inputs[:60], label=bench.labels[:60])
    candidates = bench.quantize(few, target, max_score_drop=1).candidates
    by_nncf = [each for each in candidates if each.method == "NNCF"]
    assert [each.engine for each in sorted(by_nncf, key=lambda each: each.engine)] == ["onnxruntime", "openvino"]
    for each in by_nncf:
        assert each.score is not None
        assert each.score > 0.8
        assert each.model is not None
        assert each.size_bytes < nncf_graphs.SMALLEST_BYTES
