from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.conversion import graphs
from shiplift.runtime.model.conversion.batching import answer_in_batches, save_with_any_batch
from shiplift.runtime.model.tensors import Arrays

X = np.random.default_rng(0).normal(size=(7, 4, 4)).astype(np.float32)


def fixed(batch: int, *extra: Any, arrays: dict[str, Any] | None = None) -> onnx.ModelProto:
    """`y` (batch, 16) is `x` (batch, 4, 4) flattened by a constant shape, then what `extra` makes of `rows`."""
    constants = {"flat": np.array([batch, 16])} | (arrays or {})
    extra = extra or (helper.make_node("Tanh", ["rows"], ["y"]),)
    nodes = [helper.make_node("Reshape", ["x", "flat"], ["rows"]), *extra]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 4, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 16])
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    model = helper.make_graph(nodes, "g", [x], [y], weights)
    return helper.make_model(model, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])


def original(model: onnx.ModelProto, batch: int) -> Any:
    session = ort.InferenceSession(model.SerializeToString())
    return answer_in_batches(lambda inputs: {"y": session.run(None, inputs)[0]}, {"x": X}, batch)["y"]


def freed(model: onnx.ModelProto, batch: int, file: Path) -> tuple[tuple[str, ...], Any]:
    expected = original(model, batch)
    notes = save_with_any_batch(model, file, {"random": {"x": X}}, {"random": [expected]})
    return notes, expected


@pytest.mark.parametrize("batch", [1, 4])
def test_a_fixed_batch_is_freed_where_it_changes_no_answer(tmp_path: Path, batch: int) -> None:
    notes, expected = freed(fixed(batch), batch, tmp_path / "model.onnx")
    answer = onnx_models.answer(onnx_models.session(tmp_path / "model.onnx"), {"x": X})["y"]
    np.testing.assert_allclose(answer, expected, atol=1e-6)
    assert "made dynamic" in notes[0]


def test_reshapes_of_weights_stay(tmp_path: Path) -> None:
    arrays = {"w": np.ones(16, np.float32), "row": np.array([1, 16])}
    extra = [helper.make_node("Reshape", ["w", "row"], ["w2"]), helper.make_node("Add", ["rows", "w2"], ["y"])]
    notes, expected = freed(fixed(1, *extra, arrays=arrays), 1, tmp_path / "model.onnx")
    assert "made dynamic" in notes[0]
    np.testing.assert_allclose(expected, X.reshape(7, 16) + 1)


MIXED = (
    helper.make_node("ReduceMax", ["rows", "axes"], ["top"], keepdims=1),
    helper.make_node("Sub", ["rows", "top"], ["y"]),
)
AXES = {"axes": np.array([0, 1])}


def test_a_batch_of_1_is_kept_where_samples_would_mix(tmp_path: Path) -> None:
    notes, expected = freed(fixed(1, *MIXED, arrays=AXES), 1, tmp_path / "model.onnx")
    assert "one sample at a time" in notes[0]
    running = onnx_models.session(tmp_path / "model.onnx")
    assert onnx_models.takes_one_sample(running)
    np.testing.assert_allclose(onnx_models.answer(running, {"x": X}, step=1)["y"], expected, atol=1e-6)


def test_a_larger_batch_that_mixes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportFailed, match="fixed batch size 4, and can't be made to take others: the answers"):
        freed(fixed(4, *MIXED, arrays=AXES), 4, tmp_path / "model.onnx")


def test_the_last_batch_is_filled_up() -> None:
    sizes = []

    def answer(inputs: Arrays) -> Arrays:
        sizes.append(len(inputs["x"]))
        return {"y": inputs["x"] * 2}

    np.testing.assert_array_equal(answer_in_batches(answer, {"x": X}, 3)["y"], X * 2)
    assert sizes == [3, 3, 3]


def test_tensors_get_an_axis_of_samples_inside_branches_too() -> None:
    """The branches of an If use the state of the outer graph."""
    value = helper.make_tensor_value_info
    adding = [helper.make_node("Add", ["state", "state"], ["out"])]
    less = [helper.make_node("Neg", ["state"], ["less"]), helper.make_node("Identity", ["less"], ["out"])]
    branches = [helper.make_graph(nodes, "branch", [], [value("out", 1, None)]) for nodes in (adding, less)]
    nodes = [
        helper.make_node("Cast", ["rate"], ["going"], to=TensorProto.BOOL),
        helper.make_node("If", ["going"], ["next"], then_branch=branches[0], else_branch=branches[1]),
    ]
    inputs = [value("state", 1, [2, None, 3]), value("rate", 7, [])]
    graph = helper.make_graph(nodes, "g", inputs, [value("next", 1, [2, None, 3])])
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
    adapted = graphs.with_samples_axis(model, {"state": (1, 2, 1, 3), "rate": (1,), "next": (1, 2, 1, 3)})
    session, state = ort.InferenceSession(adapted.SerializeToString()), np.ones((1, 2, 1, 3), np.float32)
    for rate, factor in ((1, 2), (0, -1)):
        (answer,) = session.run(None, {"state": state, "rate": np.array([rate])})
        np.testing.assert_array_equal(answer, factor * state)
