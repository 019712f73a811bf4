"""Stateful models: their hidden states, their answers to a sequence, and the load test's requests to them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from shiplift.runtime.base.errors import DataInvalid, SpecInvalid
from shiplift.runtime.families import table
from shiplift.runtime.measure import requests
from shiplift.runtime.measure.generator import Demand, LoadTarget
from shiplift.runtime.measure.perf_analyzer import PerfAnalyzer, options
from shiplift.runtime.model import logged_requests, onnx_models
from shiplift.runtime.model.sequences import answer_sequence, hide_states
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.serving.triton.config import model_config, render, retuned
from shiplift.runtime.serving.triton.environment import ServerEnvironment
from shiplift.runtime.serving.triton.repository import write_package
from shiplift.runtime.spec.document import parse
from shiplift.runtime.spec.measurement import Load
from shiplift.runtime.spec.serving_settings import SequenceBatching, Serving
from tests.unit.examples import Golden, config, package, tensor
from tests.unit.runtime.serving.triton.test_config import SERVERS, description

HOW = SequenceBatching(states={"total": "next_total"})
WHOLE = Signature(
    inputs=(tensor("x", -1, 2), tensor("total", -1, 2)), outputs=(tensor("y", -1, 2), tensor("next_total", -1, 2))
)


def summing(to: Path) -> Path:
    """y is the sum of all x so far."""
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "total"], ["y"]), helper.make_node("Identity", ["y"], ["next_total"])],
        "summing",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 2]) for name in ("x", "total")],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 2]) for name in ("y", "next_total")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    to.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, to)
    return to


def test_clients_see_a_model_without_its_states() -> None:
    visible, states = hide_states(WHOLE, HOW)
    assert ([spec.name for spec in visible.inputs], [spec.name for spec in visible.outputs]) == (["x"], ["y"])
    assert states == {"total": tensor("next_total", -1, 2)}
    assert hide_states(WHOLE, None) == (WHOLE, {})


@pytest.mark.parametrize(
    ("states", "signature", "message"),
    [
        ({"sum": "next_total"}, WHOLE, "no input 'sum'; it has x, total"),
        ({"total": "sum"}, WHOLE, "no output 'sum'; it has y, next_total"),
        ({"total": "next_total", "x": "y"}, WHOLE, "0 inputs and 0 outputs"),
        (
            HOW.states,
            Signature(inputs=WHOLE.inputs, outputs=(tensor("y", -1, 2), tensor("next_total", -1, 3))),
            r"'total' is FP32 \(-1, 2\), but output 'next_total' is FP32 \(-1, 3\)",
        ),
        (
            HOW.states,
            Signature(
                inputs=(tensor("x", -1, 2), tensor("total", -1, -1)),
                outputs=(tensor("y", -1, 2), tensor("next_total", -1, -1)),
            ),
            "zeros of a known shape",
        ),
    ],
)
def test_states_that_the_model_does_not_have_are_refused(
    states: dict[str, str], signature: Signature, message: str
) -> None:
    with pytest.raises(SpecInvalid, match=message):
        hide_states(signature, SequenceBatching(states=states))


def test_each_step_begins_with_what_the_one_before_left(tmp_path: Path) -> None:
    running = onnx_models.session(summing(tmp_path / "model.onnx"))
    x = np.array([[1, 2], [10, 20], [100, 200]], np.float32)
    answers = answer_sequence(running, {"x": x}, hide_states(WHOLE, HOW)[1])
    assert list(answers) == ["y"]
    np.testing.assert_array_equal(answers["y"], np.cumsum(x, axis=0))


@pytest.mark.parametrize("server", SERVERS)
def test_a_model_that_remembers_is_configured_as_promised(server: Any, golden: Golden) -> None:
    visible, states = hide_states(WHOLE, HOW)
    model = description(signature=visible, states=states, warmups=(), serving=Serving(sequence_batching=HOW))
    text = render(model_config(model, server))
    golden(f"sequences.{server}.config.pbtxt", text)
    again = retuned(text, config(16, 700, 2, 1))
    assert "max_queue_delay_microseconds: 700" in again
    assert "dynamic_batching" not in again


def test_its_package_brings_both_parts_of_its_backend_and_warms_nothing(tmp_path: Path) -> None:
    summing(tmp_path / "onnx" / "model.onnx")
    visible, states = hide_states(WHOLE, HOW)
    model = description(signature=visible, states=states, warmups=(), serving=Serving(sequence_batching=HOW))
    (tmp_path / "package").mkdir()
    at = write_package(tmp_path / "package", model, tmp_path / "onnx", "bundled", example={}, golden={}) / model.name
    files = {"model.onnx", "model.py", "inner.py", "onnx_model.py", "packing.py", "python_model.py", "python_host"}
    assert {file.name for file in (at / "3").iterdir()} == files
    assert "from onnx_model import" in (at / "3" / "inner.py").read_text()
    assert not (at / "warmup").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("serving: {sequence_batching: {states: {}}}", "serving.sequence_batching.states"),
        ("serving: {sequence_batching: {states: {a: x, b: x}}}", "the same output"),
        ("serving: {sequence_batching: {states: {a: x}}, response_cache: true}", "excludes"),
        ("serving: {sequence_batching: {states: {a: x}}, queue: {max_size: 5}}", "excludes"),
        ("serving: {sequence_batching: {states: {a: x}}}\nrollout: {replicas: 2}", "replicas is 2, the limit is 1"),
        (
            (
                "serving: {sequence_batching: {states: {a: x}}}\nexport: {torchscript: true}\n"
                "targets: [{name: t, server: nvidia, engine: pytorch, precisions: [fp32]}]"
            ),
            "keeps no states",
        ),
    ],
)
def test_a_spec_that_no_server_can_keep_is_refused(text: str, message: str) -> None:
    with pytest.raises(SpecInvalid, match=message):
        parse(text)


def written(file: Path) -> list[list[dict[str, Any]]]:
    data: list[list[dict[str, Any]]] = json.loads(file.read_text())["data"]
    return data


def test_made_up_sequences_have_the_length_asked_for(tmp_path: Path) -> None:
    golden = {"input/x": np.array([[1, 2], [3, 4]], np.float32)}
    served = package(signature=hide_states(WHOLE, HOW)[0], sequences=True)
    generator = PerfAnalyzer(ServerEnvironment(tmp_path))
    made = table.requests(served, golden, Load(sequence_length=7))
    sequences = written(made.write(generator, tmp_path / "r.json", served.signature))
    assert {len(sequence) for sequence in sequences} == {7}
    assert len({json.dumps(sequence) for sequence in sequences}) == len(sequences) > 1
    assert set(sequences[0][0]) == {"x"}
    long = requests.synthetic_sequences({"x": golden["input/x"]}, served.signature, Load(sequence_length=5000))
    assert [len(sequence) for sequence in long] == [5000]


def test_recorded_sequences_stay_together(tmp_path: Path) -> None:
    signature = hide_states(WHOLE, HOW)[0]

    def body(value: int, **more: Any) -> dict[str, Any]:
        return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [value, value]}]} | more

    log = [body(at, parameters={"sequence_id": 7 + at % 2}) for at in range(5)]
    sequences = logged_requests.recorded_sequences(json.dumps(log).encode(), "log.json", signature, 20)
    assert [[int(step["x"][0]) for step in sequence] for sequence in sequences] == [[0, 2, 4], [1, 3]]
    file = tmp_path / "log.npz"
    np.savez(file, x=np.arange(8, dtype=np.float32).reshape(4, 2), sequence_id=np.array(["a", "b", "a", "a"]))
    sequences = logged_requests.recorded_sequences(file.read_bytes(), "log.npz", signature, 20)
    assert [len(sequence) for sequence in sequences] == [3, 1]
    plain = json.dumps([body(at) for at in range(5)]).encode()
    assert [len(sequence) for sequence in logged_requests.recorded_sequences(plain, "log.json", signature, 2)] == [
        2,
        2,
        1,
    ]
    with pytest.raises(DataInvalid, match="has no requests"):
        logged_requests.recorded_sequences(b"[]", "log.json", signature, 2)


def test_an_input_may_have_the_name_that_sequences_are_told_apart_by(tmp_path: Path) -> None:
    signature = Signature(inputs=(tensor("sequence_id", -1, 2),), outputs=(tensor("y", -1, 2),))
    np.savez(tmp_path / "log.npz", sequence_id=np.arange(6, dtype=np.float32).reshape(3, 2))
    sequences = logged_requests.recorded((tmp_path / "log.npz").read_bytes(), "log.npz", signature)
    assert [sample["sequence_id"].tolist() for sample in sequences] == [[0, 1], [2, 3], [4, 5]]
    tensors = [{"name": "sequence_id", "datatype": "FP32", "shape": [1, 2], "data": [8, 9]}]
    log = json.dumps([{"inputs": tensors, "parameters": {"sequence_id": 7}}]).encode()
    assert logged_requests.recorded(log, "log.json", signature)[0]["sequence_id"].tolist() == [8, 9]


def test_at_a_rate_the_requests_of_a_sequence_wait_for_each_other(tmp_path: Path) -> None:
    target = LoadTarget(model="m", address="a", requests=tmp_path / "r.json", sequences=True)
    assert "--serial-sequences" in options(target, Demand(rate_per_s=10))
    assert "--serial-sequences" not in options(target, Demand(concurrency=2))
    alone = LoadTarget(model="m", address="a", requests=tmp_path / "r.json")
    assert "--serial-sequences" not in options(alone, Demand(rate_per_s=10))
