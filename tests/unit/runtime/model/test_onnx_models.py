import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from onnx import TensorProto, helper

from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.model import onnx_models, tensors
from tests.unit.examples import perceptron, save, signature, tensor

_floats = npst.arrays(np.float32, npst.array_shapes(max_dims=3), elements={"allow_nan": False})


@settings(deadline=None)
@given(_floats)
def test_an_answer_differs_from_itself_by_nothing_infinities_included(answer: Any) -> None:
    assert onnx_models.differences(answer, answer.copy()) == (0, 0)
    assert onnx_models.differences(answer, answer.reshape(-1)) == (0, 0)


@settings(deadline=None)
@given(_floats.filter(lambda a: np.isfinite(a).all()), st.floats(0.001, 1000))
def test_a_difference_is_absolute_and_relative_to_the_largest_value_wanted(answer: Any, by: float) -> None:
    expected = answer.astype(np.float64)
    actual = expected.copy()
    actual.flat[0] += by
    absolute, relative = onnx_models.differences(expected, actual)
    moved = abs(actual.flat[0] - expected.flat[0])
    assert absolute == moved
    scale = np.abs(expected).max()
    assert relative == (moved / scale if scale else (math.inf if moved else 0))


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ([1.0, 2.0], [1.0]),
        ([1.0], [math.nan]),
        ([math.nan], [1.0]),
        ([math.inf], [-math.inf]),
        ([0.0], [math.inf]),
        ([1, 2], [1, 3]),
        ([True], [False]),
        (["a"], ["b"]),
        (["a"], [1.0]),
        ([], [1.0]),
    ],
)
def test_what_cannot_be_close_is_infinitely_far(expected: list[Any], actual: list[Any]) -> None:
    absolute, _ = onnx_models.differences(np.array(expected), np.array(actual))
    assert absolute == math.inf


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (np.array([1, 2]), np.array([[1], [2]], dtype=np.int32)),
        (np.array(["a", "b"]), np.array([["a"], ["b"]], dtype=object)),
        (np.array([], dtype=np.float32), np.array([], dtype=np.float32)),
        (np.array([math.inf, 1.0]), np.array([math.inf, 1.0])),
        (np.array([0.0]), np.array([-0.0])),
        (np.array([math.nan, 1.0]), np.array([math.nan, 1.0])),
    ],
)
def test_equal_answers_agree_whatever_their_shape_and_kind(expected: Any, actual: Any) -> None:
    assert onnx_models.differences(expected, actual) == (0, 0)


def test_a_signature_is_read_from_the_graph_without_its_weights(tmp_path: Path) -> None:
    model = onnx.load(perceptron(tmp_path / "model.onnx"))
    model.graph.input.append(helper.make_tensor_value_info("w1", TensorProto.FLOAT, [4, 32]))
    assert onnx_models.signature_of(model) == signature()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (TensorProto.STRING, "BYTES"),
        (TensorProto.INT64, "INT64"),
        (TensorProto.BOOL, "BOOL"),
        (TensorProto.DOUBLE, "FP64"),
    ],
)
def test_types_and_free_dimensions_have_triton_s_names(kind: int, name: str) -> None:
    value = helper.make_tensor_value_info("x", kind, ["batch", None, 3])
    model = helper.make_model(helper.make_graph([], "g", [value], [value]))
    assert onnx_models.signature_of(model).inputs == (tensor("x", -1, -1, 3, datatype=name),)


def test_a_type_that_triton_cannot_carry_is_refused_by_name() -> None:
    value = helper.make_tensor_sequence_value_info("maps", TensorProto.FLOAT, None)
    model = helper.make_model(helper.make_graph([], "g", [], [value]))
    with pytest.raises(ExportFailed, match="'maps' is a sequence_type that Triton can't carry"):
        onnx_models.signature_of(model)


def test_a_session_answers_by_name(tmp_path: Path) -> None:
    running = onnx_models.session(perceptron(tmp_path / "model.onnx"))
    rows = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    whole = onnx_models.answer(running, {"input": rows})
    assert {name: array.shape for name, array in whole.items()} == {"output": (5, 3)}
    pieces = [onnx_models.answer(running, {"input": rows[at : at + 2]}) for at in range(0, 5, 2)]
    np.testing.assert_allclose(tensors.concatenate(pieces)["output"], whole["output"], rtol=1e-5)


def test_a_session_takes_text_as_numpy_gives_it(tmp_path: Path) -> None:
    text = [helper.make_tensor_value_info(name, TensorProto.STRING, ["batch", 1]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "echo", text[:1], text[1:])
    running = onnx_models.session(save(graph, tmp_path / "model.onnx"))
    for given_ in (np.array([["ä"], ["b"]]), np.array([["ä"], ["b"]], dtype=object)):
        assert onnx_models.answer(running, {"x": given_})["y"].tolist() == [["ä"], ["b"]]


def test_a_file_that_is_no_model_is_refused_with_the_runtime_s_words(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"not a model")
    with pytest.raises(ExportFailed, match=r"ONNX Runtime .* does not load the model"):
        onnx_models.session(tmp_path / "model.onnx")


def test_an_operator_whose_locale_is_unknown_is_named_with_one_that_every_machine_has(tmp_path: Path) -> None:
    def saved(locale: str) -> Path:
        text = '<ir_version: 10, opset_import: ["" : 18]> g (string[N] x) => (string[N] y) {{ [lowered] y = {}(x) }}'
        node = f'StringNormalizer<case_change_action="LOWER", locale="{locale}">'
        onnx.save(onnx.parser.parse_model(text.format(node)), tmp_path / "model.onnx")
        return tmp_path / "model.onnx"

    with pytest.raises(ExportFailed, match=r"StringNormalizer \(lowered\) asks for the locale 'xx_YY'.*'C\.UTF-8'"):
        onnx_models.session(saved("xx_YY"))
    answers = onnx_models.answer(onnx_models.session(saved("C.UTF-8")), {"x": np.array(["ÀÉx"], object)})
    assert answers["y"].tolist() == ["àéx"]
