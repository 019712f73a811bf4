from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from onnx import TensorProto, helper

from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.conversion.postprocess import in_graph, in_numpy

CLASSES = 4
_OUTPUTS: dict[tuple[str, ...], dict[str, Any]] = {
    ("softmax",): {"probabilities": (np.float32, (-1, CLASSES))},
    ("sigmoid",): {"probabilities": (np.float32, (-1, CLASSES))},
    ("argmax",): {"label": (np.int64, (-1, 1))},
    ("top_k",): {"top_scores": (np.float32, (-1, 2)), "top_labels": (np.int64, (-1, 2))},
    ("softmax", "top_k"): {"top_scores": (np.float32, (-1, 2)), "top_labels": (np.int64, (-1, 2))},
    ("softmax", "argmax"): {"label": (np.int64, (-1, 1))},
}


def identity(kind: int = TensorProto.FLOAT, shape: Any = ("batch", CLASSES), extra: bool = False) -> Any:
    """A model that gives its input as `logits`, and where asked a second output."""
    nodes = [helper.make_node("Identity", ["x"], ["logits"])]
    outputs = [helper.make_tensor_value_info("logits", kind, shape)]
    if extra:
        nodes.append(helper.make_node("Identity", ["x"], ["features"]))
        outputs.append(helper.make_tensor_value_info("features", kind, shape))
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", kind, shape)], outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.fixture(scope="module", params=list(_OUTPUTS), ids=" ".join)
def graph(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[tuple[str, ...], Any]:
    file = tmp_path_factory.mktemp("graph") / "model.onnx"
    model = in_graph(identity(), request.param, 2)
    onnx.checker.check_model(model)
    onnx.save(model, file)
    return request.param, onnx_models.session(file)


@given(
    logits=npst.arrays(
        np.float32, st.tuples(st.integers(1, 5), st.just(CLASSES)), elements=st.floats(-80, 80, width=32), unique=True
    )
)
def test_the_graph_and_its_twin_in_numpy_give_the_same(graph: tuple[tuple[str, ...], Any], logits: Any) -> None:
    steps, running = graph
    got = onnx_models.answer(running, {"x": logits})
    expected = in_numpy({"logits": logits}, steps, 2)
    assert got.keys() == expected.keys() == _OUTPUTS[steps].keys()
    for name, array in expected.items():
        kind, (_, columns) = _OUTPUTS[steps][name]
        assert (got[name].dtype, array.dtype) == (kind, kind)
        assert got[name].shape == array.shape == (len(logits), columns)
        if kind == np.float32:
            np.testing.assert_allclose(got[name], array, rtol=1e-5, atol=1e-6)
        elif steps[0] != "softmax":  # after softmax two scores may round to the same
            np.testing.assert_array_equal(got[name], array)


def test_equal_scores_are_ranked_alike_on_both_sides(tmp_path: Path) -> None:
    logits = np.array([[1, 3, 3, 2], [0, 0, 0, 0]], np.float32)
    for step in ("argmax", "top_k"):
        file = tmp_path / f"{step}.onnx"
        onnx.save(in_graph(identity(), (step,), 2), file)
        got = onnx_models.answer(onnx_models.session(file), {"x": logits})
        for name, expected in in_numpy({"logits": logits}, (step,), 2).items():
            np.testing.assert_array_equal(got[name], expected)


@pytest.mark.parametrize("steps", list(_OUTPUTS), ids=" ".join)
def test_the_signature_of_the_graph_says_what_it_gives(steps: tuple[str, ...]) -> None:
    outputs = onnx_models.signature_of(in_graph(identity(), steps, 2)).outputs
    assert {spec.name: spec.shape for spec in outputs} == {name: shape for name, (_, shape) in _OUTPUTS[steps].items()}


def test_other_outputs_stay_as_they_are() -> None:
    model = in_graph(identity(extra=True), ("softmax",), 2)
    assert [output.name for output in model.graph.output] == ["probabilities", "features"]
    kept = in_numpy({"logits": np.zeros((1, 4), np.float32), "features": np.ones(3)}, ("softmax",), 2)
    assert list(kept) == ["probabilities", "features"]


def test_nothing_is_appended_where_nothing_is_asked() -> None:
    assert in_graph(identity(), (), 2) == identity()
    assert list(in_numpy({"logits": np.zeros(1)}, (), 2)) == ["logits"]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (identity(shape=("batch",)), "'logits' has rank 1"),
        (identity(shape=("batch", 2, 2)), "'logits' has rank 3"),
        (identity(kind=TensorProto.INT64), "type INT64"),
    ],
)
@pytest.mark.parametrize("step", ["softmax", "sigmoid", "argmax", "top_k"])
def test_an_output_that_is_no_table_of_scores_is_refused(model: Any, message: str, step: str) -> None:
    with pytest.raises(ExportFailed, match="needs a float output of shape"):
        in_graph(model, (step,), 2)
    with pytest.raises(ExportFailed, match=message):
        in_graph(model, (step,), 2)


def test_more_classes_than_there_are_cannot_be_the_top() -> None:
    with pytest.raises(ExportFailed, match=r"export\.top_k is 5, the model has 4 classes"):
        in_graph(identity(), ("top_k",), 5)


def test_steps_that_do_not_follow_each_other_are_refused() -> None:
    with pytest.raises(ExportFailed, match="'softmax' needs a float output"):
        in_graph(identity(), ("argmax", "softmax"), 2)


@pytest.mark.parametrize(
    ("steps", "name"),
    [(("softmax", "sigmoid"), "probabilities"), (("top_k", "top_k"), "top_labels"), (("argmax",), "label")],
)
def test_a_name_that_is_taken_is_told(steps: tuple[str, ...], name: str) -> None:
    model = identity(extra=True)
    model.graph.node[1].output[0] = model.graph.output[1].name = "label"
    with pytest.raises(ExportFailed, match=f"adds the output '{name}', but the model already has a tensor"):
        in_graph(model, steps, 2)
