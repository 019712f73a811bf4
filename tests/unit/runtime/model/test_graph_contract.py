from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from shiplift.runtime.base.errors import NotAdmitted
from shiplift.runtime.model.contracts import read_model
from shiplift.runtime.model.graph_contract import GraphContract, read
from tests.unit.examples import perceptron, save, tensor

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def graph(tmp_path: Path, inputs: dict[str, Any], outputs: dict[str, Any], *, weights: tuple[str, ...] = ()) -> Path:
    """A file that says it has these tensors (shapes, or the type and the shape); nothing runs it."""

    def values(tensors: dict[str, Any]) -> list[Any]:
        typed = {name: kind if isinstance(kind, tuple) else (FLOAT, kind) for name, kind in tensors.items()}
        return [helper.make_tensor_value_info(name, *kind) for name, kind in typed.items()]

    nodes = [helper.make_node("Identity", [next(iter(inputs))], [output]) for output in outputs]
    constants = [numpy_helper.from_array(np.ones(3, np.float32), name) for name in weights]
    return save(helper.make_graph(nodes, "g", values(inputs), values(outputs), constants), tmp_path / "model.onnx")


def contract(file: Path, states: dict[str, str] | None = None) -> GraphContract:
    contract = read(file, states)
    assert contract is not None
    return contract


def test_a_graph_names_its_own_tensors(tmp_path: Path) -> None:
    known = contract(perceptron(tmp_path / "model.onnx"))
    assert known.signature.inputs == (tensor("input", -1, 4),)
    assert known.signature.outputs == (tensor("output", -1, 3),)
    assert (known.states, known.whole, known.notes) == ({}, frozenset(), ())


def test_what_mlflow_calls_otherwise_is_matched_by_order(tmp_path: Path) -> None:
    known, x = contract(perceptron(tmp_path / "model.onnx")), np.ones((2, 4))
    assert list(known.batched({"image": x})) == ["input"]


def test_a_scalar_gets_an_axis_and_stops_batching(tmp_path: Path) -> None:
    known = contract(graph(tmp_path, {"x": ["b", 4], "rate": (INT64, [])}, {"y": ["b", 2], "loss": []}))
    assert known.signature.inputs == (tensor("x", 1, 4), tensor("rate", 1, datatype="INT64"))
    assert known.signature.outputs == (tensor("y", 1, 2), tensor("loss", 1))
    assert known.batched({"x": np.ones((1, 4)), "rate": np.array(16000)})["rate"].shape == (1,)
    assert "rate" in known.notes[-1]


def test_initializers_are_optional_inputs_and_left_out(tmp_path: Path) -> None:
    file = graph(tmp_path, {"x": ["b", 3], "scale": [3]}, {"y": ["b", 3]}, weights=("scale",))
    assert [spec.name for spec in contract(file).signature.inputs] == ["x"]


def test_a_state_is_found_although_its_batch_is_not_in_front(tmp_path: Path) -> None:
    file = graph(
        tmp_path,
        {"input": [None, None], "state": [2, None, 128], "sr": (INT64, [])},
        {"output": [None, 1], "stateN": [None, None, None]},
    )
    known = contract(file)
    assert known.states == {"state": "stateN"}
    rate = tensor("sr", 1, datatype="INT64")
    assert known.signature.inputs == (tensor("input", 1, -1), tensor("state", 1, 2, 1, 128), rate)
    assert known.signature.outputs == (tensor("output", 1, 1), tensor("stateN", 1, 2, 1, 128))
    assert "state from stateN" in known.notes[0]


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("hidden", "next_hidden"),
        ("h", "hn"),
        ("h0", "hn"),
        ("state_in", "state_out"),
        ("c_0", "c_n"),
        ("past_key", "present_key"),
        ("cell", "new_cell"),
        ("input_state", "output_state"),
    ],
)
def test_states_are_found_by_the_names_that_people_give(tmp_path: Path, name: str, output: str) -> None:
    known = contract(graph(tmp_path, {"x": ["b", 4], name: ["b", 8]}, {"y": ["b", 2], output: ["b", 8]}))
    assert known.states == {name: output}
    assert known.signature.inputs[1] == tensor(name, -1, 8)


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ({"x": ["b", 4], "state": ["b", 8]}, {"y": ["b", 2], "next_state": ["b", 9]}),
        ({"x": ["b", 4], "state": (INT64, ["b", 8])}, {"y": ["b", 2], "next_state": ["b", 8]}),
        ({"x": ["b", 4], "state": ["b", 8]}, {"y": ["b", 2], "next_state": ["b", 8], "new_state": ["b", 8]}),
        ({"x": ["b", 4], "past": ["b", 2, "t", 8]}, {"y": ["b", 2], "present": ["b", 2, "t2", 8]}),
        ({"state": ["b", 8]}, {"y": ["b", 2], "next_state": ["b", 8]}),
        ({"input_a": ["b", 8], "input_b": ["b", 8]}, {"output_a": ["b", 8], "output_b": ["b", 8], "y": ["b", 1]}),
    ],
)
def test_what_only_looks_like_a_state_is_none(tmp_path: Path, inputs: Any, outputs: Any) -> None:
    assert contract(graph(tmp_path, inputs, outputs)).states == {}


@pytest.mark.parametrize("layers", [1, 2])
def test_a_state_may_have_its_layers_in_front(tmp_path: Path, layers: int) -> None:
    known = contract(graph(tmp_path, {"x": ["b", 4], "h0": [layers, "b", 8]}, {"y": ["b", 2], "hn": [layers, "b", 8]}))
    assert known.signature.inputs == (tensor("x", 1, 4), tensor("h0", 1, layers, 1, 8))


def test_a_spec_that_says_there_are_no_states_is_believed(tmp_path: Path) -> None:
    file = graph(tmp_path, {"x": ["b", 4], "hidden": ["b", 8]}, {"y": ["b", 2], "next_hidden": ["b", 8]})
    assert contract(file, {}).states == {}


@pytest.mark.parametrize("batch", [1, 4])
def test_a_fixed_batch_is_part_of_the_contract(tmp_path: Path, batch: int) -> None:
    known = contract(graph(tmp_path, {"x": [batch, 4], "m": [batch, 4]}, {"y": [batch, 2]}))
    assert [spec.shape[0] for spec in (*known.signature.inputs, *known.signature.outputs)] == [batch] * 3


@pytest.mark.parametrize("inputs", [{"x": ["b", 4], "m": [3, 4]}, {"x": [2, 4], "m": [3, 4]}, {"x": [2, 4], "r": []}])
def test_inputs_that_disagree_on_the_batch_are_refused_with_their_shapes(tmp_path: Path, inputs: Any) -> None:
    with pytest.raises(NotAdmitted, match=r"disagree on the batch.*'x' \(") as error:
        read(graph(tmp_path, inputs, {"y": ["b", 2]}))
    assert "sequence_batching" in error.value.do


FLOATS = helper.make_tensor_type_proto(FLOAT, ["b"])
UNCARRIED = [
    (helper.make_tensor_type_proto(TensorProto.COMPLEX64, ["b"]), "a tensor of COMPLEX64"),
    (helper.make_tensor_type_proto(TensorProto.BFLOAT16, ["b"]), "a tensor of BFLOAT16"),
    (helper.make_optional_type_proto(FLOATS), "an optional value"),
    (helper.make_sequence_type_proto(FLOATS), "a sequence"),
    (helper.make_map_type_proto(TensorProto.INT64, FLOATS), "a map"),
    (helper.make_sparse_tensor_type_proto(FLOAT, ["b"]), "of the type sparse_tensor_type"),
]


@pytest.mark.parametrize(("kind", "named"), UNCARRIED)
def test_a_type_that_triton_cannot_carry_is_named(tmp_path: Path, kind: Any, named: str) -> None:
    plain = helper.make_tensor_value_info("x", FLOAT, ["b"])
    for inputs, outputs in (
        ([helper.make_value_info("z", kind)], [plain]),
        ([plain], [helper.make_value_info("z", kind)]),
    ):
        file = tmp_path / "model.onnx"
        onnx.save(helper.make_model(helper.make_graph([], "g", inputs, outputs)), file)
        with pytest.raises(NotAdmitted, match=f"put 'z' of the graph is {named}, which Triton can't carry"):
            read(file)


def test_a_negative_size_is_any_size(tmp_path: Path) -> None:
    assert contract(graph(tmp_path, {"x": [-5, -7]}, {"y": ["b"]})).signature.inputs == (tensor("x", -1, -1),)


def test_a_file_that_is_no_graph_is_left_to_the_scan(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"\xff" * 100)
    assert read(tmp_path / "model.onnx") is None
    assert read(tmp_path / "gone.onnx") is None


def test_an_example_of_many_samples_says_what_lacks_their_axis(tmp_path: Path) -> None:
    graph(tmp_path, {"x": ["b", 3]}, {"y": []})
    (tmp_path / "MLmodel").write_text(
        "flavors: {onnx: {data: model.onnx}}\n"
        "saved_input_example_info: {artifact_path: input_example.json, type: ndarray}\n"
    )
    (tmp_path / "input_example.json").write_text('{"inputs": {"x": [[1, 2, 3], [4, 5, 6]]}}')
    with pytest.raises(NotAdmitted, match="has shape") as error:
        read_model(tmp_path)
    assert "no axis of samples: y." in error.value.do
