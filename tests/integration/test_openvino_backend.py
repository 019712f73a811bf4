"""The bundled server's own OpenVINO backend: what is this engine's alone, its errors, limits and precisions."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper
from tritonclient.utils import InferenceServerException

from shiplift.runtime.base.errors import ServerFailed
from shiplift.runtime.spec.serving_settings import Serving
from tests.integration import backends
from tests.integration.backends import ask, counts, lookup, model, server_for, wide
from tests.integration.conftest import until

pytestmark = pytest.mark.integration
put = partial(backends.put, engine="openvino")
served = partial(backends.served, engine="openvino")


def only_four_columns() -> Any:
    """Any number of columns can be asked for, and its last node takes only four."""
    nodes = [helper.make_node("Softmax", ["x"], ["h0"], axis=1)]
    nodes += [helper.make_node("Mul", [f"h{at}", "factor"], [f"h{at + 1}"]) for at in range(20)]
    nodes += [helper.make_node("Add", ["h20", "four"], ["z"]), helper.make_node("Sigmoid", ["z"], ["y"])]
    constants = {"factor": np.array([1.5], np.float32), "four": np.ones((1, 4), np.float32)}
    return model(
        nodes,
        [("x", "FP32", ["n", "m"])],
        [("y", "FP32", ["n", "m"])],
        tuple(numpy_helper.from_array(array, name) for name, array in constants.items()),
    )


def test_a_request_that_the_model_cannot_take_gets_its_error_and_the_next_is_answered(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    running = ort.InferenceSession(only_four_columns().SerializeToString())
    asked = [
        rng.normal(size=(int(rng.integers(1, 9)), int(rng.choice([4, 4, 3, 5])))).astype(np.float32) for _ in range(80)
    ]
    with served(tmp_path, only_four_columns()) as server:
        for x in asked:
            if x.shape[1] == 4:
                assert np.allclose(ask(server, {"x": x}).as_numpy("y"), running.run(None, {"x": x})[0], atol=1e-5)
            else:
                with pytest.raises(InferenceServerException, match=r"OpenVINO: .*shape"):
                    ask(server, {"x": x})
        good = sum(x.shape[1] == 4 for x in asked)
        assert until(lambda: counts(server) == (good, len(asked) - good))


def unknown_operator() -> Any:
    nodes = [helper.make_node("Frobnicate", ["x"], ["y"], domain="com.example")]
    built = model(nodes, [("x", "FP32", ["n", 3])], [("y", "FP32", ["n", 3])])
    built.opset_import.append(helper.make_opsetid("com.example", 1))
    return built


def test_a_graph_that_openvino_cannot_read_is_refused_and_the_server_keeps_running(tmp_path: Path) -> None:
    put(tmp_path, lookup())
    put(tmp_path, unknown_operator(), "unknown")
    put(tmp_path, lookup(), "broken")
    (tmp_path / "models" / "broken" / "1" / "model.onnx").write_bytes(b"\x08\x08 no model")
    with server_for(tmp_path) as (server, client):
        with pytest.raises(ServerFailed, match=r"OpenVINO can't read or compile the model: .*Frobnicate"):
            client.load("unknown")
        with pytest.raises(ServerFailed, match="OpenVINO can't read or compile the model: "):
            client.load("broken")
        client.load("m")
        assert ask(server, {"x": np.array([[3]], np.int64)}).as_numpy("y").tolist() == [[3.0]]


@pytest.mark.slow
def test_a_model_that_compiles_for_too_long_is_refused_and_the_server_keeps_running(tmp_path: Path) -> None:
    put(tmp_path, wide(64), "slow", settings={"COMPILE_TIMEOUT_MS": "1"})
    put(tmp_path, lookup())
    with server_for(tmp_path) as (server, client):
        with pytest.raises(ServerFailed, match=r"did not compile the model within 0\.001 s, its limit"):
            client.load("slow")
        client.load("m")
        assert ask(server, {"x": np.array([[3]], np.int64)}).as_numpy("y").tolist() == [[3.0]]


def test_a_precision_that_this_processor_lacks_is_refused_when_the_model_is_loaded(tmp_path: Path) -> None:
    """Otherwise OpenVINO would silently compute in another."""
    flags = Path("/proc/cpuinfo").read_text()
    if "avx512_fp16" in flags:
        pytest.skip("this processor computes in f16")
    put(tmp_path, lookup(), settings={"INFERENCE_PRECISION_HINT": "f16"})
    put(tmp_path, lookup(), "odd", settings={"INFERENCE_PRECISION_HINT": "f8"})
    with server_for(tmp_path) as (_, client):
        with pytest.raises(ServerFailed, match="for CPUs that compute in f16, which this one does not"):
            client.load("m")
        with pytest.raises(ServerFailed, match="INFERENCE_PRECISION_HINT is f32, bf16 or f16, not 'f8'"):
            client.load("odd")


def test_bf16_is_computed_in_bf16_and_fp32_in_fp32(tmp_path: Path) -> None:
    if "avx512_bf16" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor does not compute in bf16")
    onnx_model = wide(1)
    side = onnx_model.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    x = np.random.default_rng(1).normal(size=(8, side)).astype(np.float32)
    exact = ort.InferenceSession(onnx_model.SerializeToString()).run(None, {"x": x})[0]
    put(tmp_path, onnx_model)
    put(tmp_path, onnx_model, "half", precision="bf16")
    with server_for(tmp_path) as (server, client):
        client.load("m")
        client.load("half")
        errors = [
            float(np.linalg.norm(ask(server, {"x": x}, name=name).as_numpy("y") - exact) / np.linalg.norm(exact))
            for name in ("m", "half")
        ]
    assert errors[0] < 1e-5
    assert 1e-4 < errors[1] < 1e-2


def test_an_execution_over_its_limit_is_stopped_and_the_instance_serves_on(tmp_path: Path) -> None:
    """OpenVINO stops between two nodes; the many rows take any processor several times the limit."""
    side = 512
    weights = numpy_helper.from_array(np.eye(side, dtype=np.float32), "w")
    nodes = [
        node
        for at in range(150)
        for node in (
            helper.make_node("MatMul", [f"h{at}", "w"], [f"p{at}"]),
            helper.make_node("Relu", [f"p{at}"], ["y" if at == 149 else f"h{at + 1}"]),
        )
    ]
    deep = model(nodes, [("h0", "FP32", ["n", side])], [("y", "FP32", ["n", side])], (weights,))
    put(tmp_path, deep, serving=Serving(warmup=False, request_timeout_s=0.4), max_batch=8192)
    with server_for(tmp_path) as (server, client):
        client.load("m")
        for _ in range(2):
            with pytest.raises(InferenceServerException, match=r"stopped after 0\.4 s, its limit"):
                ask(server, {"h0": np.ones((8192, side), np.float32)})
            assert (ask(server, {"h0": np.ones((1, side), np.float32)}).as_numpy("y") == 1).all()
