"""OpenVINO's candidates from the ladder's files: real models, without the sandbox."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from shiplift.runtime.base.errors import QuantizeFailed
from shiplift.runtime.host.processor import cpu_flags
from shiplift.runtime.model import onnx_models, openvino_models
from shiplift.runtime.precision import nncf_graphs, openvino_rungs, selection, timing
from shiplift.runtime.precision.evaluation import Validation
from shiplift.runtime.precision.timing import RunnableCandidate
from shiplift.runtime.records.precision import Built
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.spec.model import Quantization
from shiplift.runtime.spec.target import Target
from tests.unit.examples import perceptron, tensor
from tests.unit.runtime.precision.test_ladder import builder
from tests.unit.steps.test_quantize import Bench

HAS_BF16 = bool(cpu_flags() & {"avx512_bf16", "amx_bf16"})


def model(nodes: list[Any], constants: dict[str, Any], file: Path, *, columns: int | str = 4) -> Path:
    """An ONNX file from `x`, rows of `columns` numbers, to `y`."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", columns])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "k"])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.example", 1)]
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=opsets), file)
    return file


def test_each_precision_is_scored_on_the_engine_that_will_run_it(tmp_path: Path) -> None:
    target = Target(precisions=("fp32", "bf16", "int8"))
    ladder = builder(Bench(tmp_path), target=target).build()
    by = {candidate.variant: candidate for candidate in ladder.candidates}
    assert set(by) == {
        "onnxruntime-fp32",
        "onnxruntime-int8",
        "openvino-fp32",
        "openvino-bf16",
        "openvino-int8",
    }
    assert by["openvino-fp32"].folder == by["onnxruntime-fp32"].folder
    assert by["openvino-int8"].folder == by["onnxruntime-int8"].folder
    fp32 = by["openvino-fp32"]
    assert (fp32.score, fp32.dropped) == (1.0, "")
    assert fp32.relative_error is not None
    assert fp32.relative_error < 1e-5
    assert by["openvino-int8"].relative_error is not None
    if HAS_BF16:
        assert by["openvino-bf16"].relative_error is not None
        assert 1e-4 < by["openvino-bf16"].relative_error < 1e-2
        assert by["openvino-bf16"].latency_ms > 0
    else:
        assert "needs a processor that computes in bf16" in by["openvino-bf16"].dropped


@pytest.mark.slow
def test_a_target_with_one_engine_keeps_nothing_of_the_other(tmp_path: Path) -> None:
    only = Target(engine="openvino", precisions=("fp32", "int8"))
    ladder = builder(Bench(tmp_path), target=only).build()
    assert {c.engine for c in ladder.candidates if not c.dropped} == {"openvino"}
    (fp32,) = [c for c in ladder.candidates if c.variant == "onnxruntime-fp32"]
    assert fp32.dropped == "target local-cpu has `engine: openvino`"


@pytest.mark.slow
def test_where_bf16_wins_fp32_is_not_scored_on_openvino_and_only_a_faster_int8_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not HAS_BF16:
        pytest.skip("this processor does not compute in bf16")
    monkeypatch.setattr(nncf_graphs, "SMALLEST_BYTES", 0)
    monkeypatch.setattr(timing, "speedup", lambda *_: 4.2)
    ladder = builder(Bench(tmp_path), target=Target(precisions=("fp32", "bf16", "int8"))).build()
    methods = {(each.engine, each.precision): each.method for each in ladder.candidates}
    assert methods["onnxruntime", "int8"] == "NNCF"
    dropped = {(each.engine, each.precision): each.dropped for each in ladder.candidates}
    why = "not tried: bf16 on OpenVINO is within the accuracy budget and 4.2x as fast as fp32"
    assert dropped["openvino", "fp32"] == why


@pytest.mark.slow
def test_our_own_calibration_is_built_after_all_if_nncf_s_graph_loses_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not HAS_BF16:
        pytest.skip("this processor does not compute in bf16")

    def fails(*_: Any, **__: Any) -> Path:
        raise QuantizeFailed("NNCF has no quantizer for it", do="")

    monkeypatch.setattr(nncf_graphs, "SMALLEST_BYTES", 0)
    monkeypatch.setattr(nncf_graphs, "quantize", fails)
    monkeypatch.setattr(timing, "speedup", lambda *_: 4.2)
    ladder = builder(Bench(tmp_path), target=Target(precisions=("fp32", "bf16", "int8"))).build()
    methods = {each.method for each in ladder.candidates if each.precision == "int8"}
    assert "static minmax, per channel" in methods


@pytest.mark.slow
def test_bf16_that_is_hardly_faster_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "speedup", lambda *_: 1.1)
    ladder = builder(Bench(tmp_path), target=Target(precisions=("fp32", "bf16", "int8"))).build()
    by = {candidate.variant: candidate for candidate in ladder.candidates}
    assert by["openvino-fp32"].score == 1.0
    assert by["onnxruntime-int8"].method.startswith("static")


def scored(file: Path, inputs: Any, precision: Any = "fp32") -> Built:
    """The only candidate of a model, without labels."""
    asked = {"x": inputs}
    reference = onnx_models.answer(onnx_models.session(file), asked)
    run, target = RunnableCandidate(file=file, outputs=("y",)), Target(precisions=(precision,))
    signature = Signature(inputs=(tensor("x", -1, 4),), outputs=(tensor("y", -1, 2),))
    validation = Validation(metric=None, asked=asked, reference=reference)
    ((candidate, _),) = openvino_rungs.scored([Built(precision="fp32")], {0: run}, target, signature, validation, {})
    return candidate


def test_an_operator_that_openvino_lacks_is_the_reason(tmp_path: Path) -> None:
    file = model([helper.make_node("Frobnicate", ["x"], ["y"], domain="com.example")], {}, tmp_path / "model.onnx")
    with pytest.raises(QuantizeFailed, match=r"OpenVINO can't (read|compile) the model: .*Frobnicate"):
        openvino_models.session(file, ["y"], "fp32")


def test_each_sample_is_asked_once_and_the_first_few_are_compared_with_fp32(tmp_path: Path) -> None:
    """Running the model is what scoring costs."""
    asked: list[int] = []

    class Session:
        def get_inputs(self) -> list[Any]:
            return []

        def get_outputs(self) -> list[Any]:
            return [SimpleNamespace(name="y")]

        def run(self, _: Any, feeds: dict[str, Any]) -> list[Any]:
            asked.append(len(feeds["x"]))
            return [feeds["x"] * 1.01]

    inputs = {"x": np.arange(20, dtype=np.float32).reshape(10, 2)}
    rows = np.array([0, 9])
    validation = Validation(
        metric=None, asked={"x": inputs["x"][rows]}, reference={"y": inputs["x"][rows]}, inputs=inputs, rows=rows
    )
    evaluation = validation.evaluate(Session())
    assert sum(asked) == 10
    assert evaluation.relative_error == pytest.approx(0.01, rel=1e-3)
    assert replace(validation, rows=None).evaluate(Session()) == evaluation
    assert sum(asked) == 22


def test_int8_without_a_calibrated_file_is_left_out_with_the_reason(tmp_path: Path) -> None:
    file = model([helper.make_node("Relu", ["x"], ["y"])], {}, tmp_path / "model.onnx")
    candidate = scored(file, np.ones((2, 4), np.float32), "int8")
    assert candidate.dropped == "OpenVINO runs int8 from a calibrated file, and there is none"


def test_texts_are_not_for_openvino() -> None:
    signature = Signature(inputs=(tensor("t", -1, datatype="BYTES"),), outputs=(tensor("y", -1, 2),))
    validation = Validation(metric=None, asked={}, reference={})
    answers = openvino_rungs.scored([], {}, Target(precisions=("fp32",)), signature, validation, {})
    assert [(built.dropped, run) for built, run in answers] == [("OpenVINO does not serve texts", None)]


def test_a_product_over_a_size_that_clients_choose_is_refused(tmp_path: Path) -> None:
    """OpenVINO answers a row of three with four weights, from bytes that are not the request's."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    weights = {"w": np.ones((4, 2), np.float32)}
    fixed = model(nodes, weights, tmp_path / "fixed.onnx", columns=4)
    assert scored(fixed, np.ones((2, 4), np.float32)).dropped == ""
    dynamic = model(nodes, weights, tmp_path / "dynamic.onnx", columns="m")
    assert "OpenVINO does not check the size of the tensor" in scored(dynamic, np.ones((2, 4), np.float32)).dropped


def test_a_graph_that_takes_one_sample_at_a_time_is_asked_so(tmp_path: Path) -> None:
    file = model([helper.make_node("Relu", ["x"], ["y"])], {}, tmp_path / "model.onnx")
    fixed = onnx.load(file)
    fixed.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(fixed, file)
    running = openvino_models.session(file, ["y"], "fp32")
    assert onnx_models.takes_one_sample(running)
    assert [node.shape for node in running.get_inputs()] == [(1, 4)]


def test_a_compilation_that_does_not_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino_models, "COMPILE_S", 0)
    with pytest.raises(QuantizeFailed, match="did not compile the model within 0 s"):
        openvino_models.session(perceptron(tmp_path / "model.onnx"), ["output"], "fp32")


def test_engines_are_not_compared_with_each_other() -> None:
    """Tuning decides; within an engine, a lower rung must be faster."""

    def candidate(engine: Any, precision: Any, latency_ms: float) -> Built:
        return Built(engine=engine, precision=precision, score=1.0, samples=100, latency_ms=latency_ms)

    candidates = (
        candidate("onnxruntime", "fp32", 1.0),
        candidate("openvino", "fp32", 3.0),
        candidate("openvino", "bf16", 2.0),
        candidate("openvino", "int8", 2.5),
    )
    kept = [c.variant for c in selection.judged(candidates, Target(), "accuracy", Quantization()) if not c.dropped]
    assert kept == ["onnxruntime-fp32", "openvino-bf16", "openvino-fp32"]
