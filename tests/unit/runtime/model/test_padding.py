"""The proof that padding changes no answer: graphs that pass it, and graphs that must not."""

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from onnx import TensorProto, helper, numpy_helper

from shiplift.runtime.model.padding import padded, prove

PAD = {"ids": 0, "mask": 0}
EXAMPLE = {
    "ids": np.arange(1, 25, dtype=np.int64).reshape(2, 12) % 9 + 1,
    "mask": np.ones((2, 12), np.int64),
}


def session(nodes: list[Any], outputs: list[tuple[str, list[Any]]], **constants: Any) -> ort.InferenceSession:
    """A graph of `ids` and `mask`, also as the floats `x` and `m`."""
    cast = [helper.make_node("Cast", [a], [b], to=TensorProto.FLOAT) for a, b in (("ids", "x"), ("mask", "m"))]
    graph = helper.make_graph(
        [*cast, *nodes],
        "g",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["n", "length"]) for name in ("ids", "mask")],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


ONE = np.array([1], np.int64)
MASKED_SUM = [
    helper.make_node("Mul", ["x", "m"], ["seen"]),
    helper.make_node("ReduceSum", ["seen", "one"], ["sum"], keepdims=0),
]


def proof(running: Any, buckets: tuple[int, ...] = (8, 16, 32), *, every: bool = True) -> Any:
    return prove(running, EXAMPLE, PAD, buckets, 1e-4, every=every)


def test_a_masked_graph_may_be_padded_and_its_outputs_with_the_length_are_cut() -> None:
    running = session(MASKED_SUM, [("sum", ["n"]), ("seen", ["n", "length"])], one=ONE)
    proven = proof(running)
    assert (proven.pad, proven.cut, proven.buckets, proven.refused) == (PAD, ("seen",), (8, 16, 32), "")


def test_a_graph_without_a_mask_is_refused_with_the_output_that_changes() -> None:
    mean = [helper.make_node("ReduceMean", ["x", "one"], ["mean"], keepdims=0)]
    proven = proof(session(mean, [("mean", ["n"])], one=ONE))
    assert proven.buckets == ()
    assert proven.refused.startswith("padding changes the answer: output 'mean' to a request of length 1 is off by")


def test_a_value_that_changes_nothing_is_the_spec_s_to_name() -> None:
    """The largest of positive numbers is the same with zeros beside it, and another with nines."""
    running = session([helper.make_node("ReduceMax", ["x", "one"], ["most"], keepdims=0)], [("most", ["n"])], one=ONE)
    assert proof(running).buckets == (8, 16, 32)
    assert "output 'most'" in prove(running, EXAMPLE, {"ids": 99, "mask": 0}, (16,), 1e-4, every=True).refused


def test_a_scale_taken_from_the_whole_batch_is_refused() -> None:
    """As dynamic quantization takes it: what stands beside a text would change its answer."""
    nodes = [
        *MASKED_SUM,
        helper.make_node("ReduceMean", ["x"], ["scale"], keepdims=0),
        helper.make_node("Div", ["sum", "scale"], ["y"]),
    ]
    assert "padding changes the answer: output 'y'" in proof(session(nodes, [("y", ["n"])], one=ONE)).refused


@pytest.mark.parametrize(("every", "kept"), [(True, ()), (False, (8, 16))])
def test_buckets_beyond_a_graph_s_positions_are_left_out_or_refuse_all(every: bool, kept: tuple[int, ...]) -> None:
    """A table of 20 positions: at 32, even a short request would fail."""
    nodes = [
        helper.make_node("Shape", ["ids"], ["length"], start=1),
        helper.make_node("Squeeze", ["length"], ["count"]),
        helper.make_node("Range", ["zero", "count", "step"], ["at"]),
        helper.make_node("Gather", ["table", "at"], ["p"]),
        helper.make_node("Mul", ["m", "p"], ["seen"]),
        helper.make_node("ReduceSum", ["seen", "one"], ["sum"], keepdims=0),
    ]
    running = session(
        nodes, [("sum", ["n"])], zero=np.int64(0), step=np.int64(1), one=ONE, table=np.ones(20, np.float32)
    )
    proven = proof(running, every=every)
    assert proven.buckets == kept
    assert bool(proven.refused) == every
    if every:
        assert proven.refused.startswith("the model fails at length 32: ")


def test_an_output_of_another_length_is_refused() -> None:
    """Attention scores have the length twice; only the first can be cut."""
    nodes = [
        helper.make_node("Unsqueeze", ["m", "one"], ["row"]),
        helper.make_node("Unsqueeze", ["m", "two"], ["column"]),
        helper.make_node("MatMul", ["column", "row"], ["scores"]),
    ]
    running = session(nodes, [("scores", ["n", "length", "length"])], one=ONE, two=np.array([2], np.int64))
    assert proof(running).refused.startswith("output 'scores' has shape (1, 1, 1) for a request of length 1, and")


@settings(deadline=None)
@given(
    arrays.arrays(np.int64, st.tuples(st.just(1), st.integers(0, 9), st.integers(1, 3)), elements=st.integers(-5, 5)),
    st.integers(0, 5),
    st.integers(-3, 3),
)
def test_padding_keeps_what_there_was_and_adds_the_value(array: Any, more: int, value: int) -> None:
    length = array.shape[1]
    other = np.ones((1, 4), np.float32)
    filled = padded({"a": array, "other": other}, {"a": value}, length + more)
    assert filled["a"].dtype == array.dtype
    assert (filled["a"][:, :length] == array).all()
    assert filled["a"].shape == (1, length + more, array.shape[2])
    assert (filled["a"][:, length:] == value).all()
    assert filled["other"] is other
