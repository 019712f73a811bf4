"""The bundled server's own ONNX Runtime backend: every request gets its own correct answer or its own error."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tritonclient import grpc
from tritonclient.utils import InferenceServerException

from shiplift.runtime.base.errors import MissingTool, ServerFailed
from shiplift.runtime.host.processes import memory_mb
from shiplift.runtime.model.onnx_models import signature_of
from shiplift.runtime.records.serving import ServingConfig
from shiplift.runtime.serving.triton import native
from shiplift.runtime.serving.triton.client import TritonClient
from shiplift.runtime.serving.triton.config import ModelDescription
from shiplift.runtime.serving.triton.environment import ServerEnvironment, default_root
from shiplift.runtime.serving.triton.repository import install, write_package
from shiplift.runtime.serving.triton.server import Features, Server, private_server
from shiplift.runtime.spec.serving import Serving

pytestmark = pytest.mark.integration
ENVIRONMENT = ServerEnvironment(default_root())
TYPES = {
    "BOOL": TensorProto.BOOL, "UINT8": TensorProto.UINT8, "UINT16": TensorProto.UINT16, "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64, "INT8": TensorProto.INT8, "INT16": TensorProto.INT16, "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64, "FP16": TensorProto.FLOAT16, "FP32": TensorProto.FLOAT, "FP64": TensorProto.DOUBLE,
}  # fmt: skip
DTYPES = {name: helper.tensor_dtype_to_np_dtype(value) for name, value in TYPES.items()}
NAMES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}


def model(nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: tuple[Any, ...] = ()) -> Any:
    """An ONNX model with opset 20; tensors are (name, datatype, shape)."""
    input_values, output_values = (
        [helper.make_tensor_value_info(name, TYPES[kind], shape) for name, kind, shape in side]
        for side in (inputs, outputs)
    )
    graph = helper.make_graph(nodes, "g", input_values, output_values, list(constants))
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])


@contextmanager
def server_for(work: Path) -> Iterator[tuple[Server, TritonClient]]:
    with (
        private_server(ENVIRONMENT, work / "models", Features(cache_mb=0), log=work / "log") as server,
        TritonClient(server.grpc) as client,
    ):
        yield server, client


def put(
    work: Path, onnx_model: Any, name: str = "m", *, instances: int = 1, threads: int = 1, delay_us: int = 0
) -> None:
    """Adds a model to the server's repository."""
    folder = work / f"{name}-onnx"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(onnx_model.SerializeToString())
    description = ModelDescription(
        name=name, version=1, signature=signature_of(onnx_model), serving=Serving(warmup=False),
        config=ServingConfig(max_batch=16, queue_delay_us=delay_us, instances=instances, threads=threads),
    )  # fmt: skip
    package = work / f"{name}-package"
    package.mkdir()
    install(
        write_package(package, description, folder, "bundled", example={}, golden={}), work / "models",
        source=name, name=name,
    )  # fmt: skip


@contextmanager
def served(work: Path, onnx_model: Any, **options: Any) -> Iterator[Server]:
    put(work, onnx_model, **options)
    with server_for(work) as (server, client):
        client.load("m")
        yield server


def ask(server: Server, arrays: dict[str, NDArray[Any]], *, only: str = "", name: str = "m") -> Any:
    inputs = []
    for key, array in arrays.items():
        inputs.append(grpc.InferInput(key, list(array.shape), NAMES[array.dtype]))
        inputs[-1].set_data_from_numpy(array)
    outputs = [grpc.InferRequestedOutput(only)] if only else None
    return grpc.InferenceServerClient(server.grpc).infer(name, inputs, outputs=outputs)


@pytest.mark.parametrize("kind", TYPES)
def test_every_data_type_is_returned_unchanged(kind: str, tmp_path: Path) -> None:
    identity = model([helper.make_node("Identity", ["x"], ["y"])], [("x", kind, ["n", 3])], [("y", kind, ["n", 3])])
    x = np.arange(6).reshape(2, 3).astype(DTYPES[kind])
    with served(tmp_path, identity) as server:
        y = ask(server, {"x": x}).as_numpy("y")
    assert y.dtype == x.dtype
    assert (y == x).all()


def two_by_two() -> Any:
    """Sums and differences of two inputs, one of which is a scalar per sample."""
    nodes = [
        helper.make_node("Unsqueeze", ["b", "one"], ["column"]), helper.make_node("Add", ["a", "column"], ["sum"]),
        helper.make_node("Sub", ["a", "column"], ["difference"]),
        helper.make_node("ReduceSum", ["sum", "one"], ["total"], keepdims=0),
    ]  # fmt: skip
    return model(
        nodes, [("a", "FP32", ["n", "m"]), ("b", "FP32", ["n"])],
        [("sum", "FP32", ["n", "m"]), ("difference", "FP32", ["n", "m"]), ("total", "FP32", ["n"])],
        (numpy_helper.from_array(np.array([1], np.int64), "one"),),
    )  # fmt: skip


def test_requests_of_many_shapes_and_sizes_at_once_each_get_their_own_answer(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    requests = [
        {"a": rng.normal(size=(n, m)).astype(np.float32), "b": rng.normal(size=(n, 1)).astype(np.float32)}
        for n, m in zip(rng.integers(1, 6, 300), rng.choice([2, 3, 7], 300), strict=True)
    ]
    with (
        served(tmp_path, two_by_two(), instances=2, delay_us=2000) as server,
        ThreadPoolExecutor(16) as pool,
    ):
        answers = list(pool.map(lambda arrays: ask(server, arrays), requests))
        stats = grpc.InferenceServerClient(server.grpc).get_inference_statistics("m").model_stats[0]
    for arrays, answer in zip(requests, answers, strict=True):
        a, b = arrays["a"], arrays["b"]
        assert np.array_equal(answer.as_numpy("sum"), a + b)
        assert np.array_equal(answer.as_numpy("difference"), a - b)
        assert np.allclose(answer.as_numpy("total"), (a + b).sum(1, keepdims=True), atol=1e-4)
    assert stats.inference_count == sum(len(arrays["a"]) for arrays in requests)
    assert stats.execution_count < len(requests)  # some were batched


def test_only_the_outputs_that_were_asked_for_are_sent(tmp_path: Path) -> None:
    arrays = {"a": np.ones((1, 2), np.float32), "b": np.ones((1, 1), np.float32)}
    with served(tmp_path, two_by_two()) as server:
        answer = ask(server, arrays, only="difference").get_response()
    assert [output.name for output in answer.outputs] == ["difference"]


def lookup() -> Any:
    """A table lookup by row: an index outside the table is an error while the model runs."""
    table = numpy_helper.from_array(np.arange(4, dtype=np.float32), "table")
    nodes = [helper.make_node("Gather", ["table", "x"], ["y"])]
    return model(nodes, [("x", "INT64", ["n", 1])], [("y", "FP32", ["n", 1])], (table,))


def test_a_request_that_fails_in_the_model_gets_its_error_and_the_next_is_answered(tmp_path: Path) -> None:
    with served(tmp_path, lookup()) as server:
        for _ in range(3):
            with pytest.raises(InferenceServerException, match=r"(?i)out of (data )?bounds"):
                ask(server, {"x": np.array([[9]], np.int64)})
            assert ask(server, {"x": np.array([[2]], np.int64)}).as_numpy("y").tolist() == [[2.0]]
        stats = grpc.InferenceServerClient(server.grpc).get_inference_statistics("m").model_stats[0]
    assert (stats.inference_stats.success.count, stats.inference_stats.fail.count) == (3, 3)


def test_a_file_that_is_not_a_model_is_refused_and_the_server_keeps_running(tmp_path: Path) -> None:
    put(tmp_path, lookup())
    put(tmp_path, lookup(), "broken")
    (tmp_path / "models" / "broken" / "1" / "model.onnx").write_bytes(b"\x08\x08 no model")
    with server_for(tmp_path) as (server, client):
        with pytest.raises(ServerFailed, match=r"(?i)protobuf|model"):
            client.load("broken")
        client.load("m")
        assert ask(server, {"x": np.array([[3]], np.int64)}).as_numpy("y").tolist() == [[3.0]]


def wide(mb: int) -> Any:
    """A model that consists almost only of weights."""
    side = int((mb * 2**20 / 4) ** 0.5)
    weights = numpy_helper.from_array(np.random.default_rng(0).normal(size=(side, side)).astype(np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    return model(nodes, [("x", "FP32", ["n", side])], [("y", "FP32", ["n", side])], (weights,))


def test_instances_share_their_weights_and_free_them(tmp_path: Path) -> None:
    put(tmp_path, wide(128), instances=4)
    with server_for(tmp_path) as (server, client):
        before = memory_mb(server.process.pid)
        client.load("m")
        loaded = memory_mb(server.process.pid)
        assert loaded - before < 2.5 * 128  # the weights, and a copy packed for the processor
        client.unload("m")
        assert memory_mb(server.process.pid) - before < 0.5 * 128


def test_more_threads_per_instance_give_the_same_answers(tmp_path: Path) -> None:
    onnx_model = wide(1)
    side = onnx_model.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    x = np.random.default_rng(1).normal(size=(8, side)).astype(np.float32)
    expected = ort.InferenceSession(onnx_model.SerializeToString()).run(None, {"x": x})[0]
    with served(tmp_path, onnx_model, instances=2, threads=2) as server, ThreadPoolExecutor(4) as pool:
        for answer in pool.map(lambda _: ask(server, {"x": x}).as_numpy("y"), range(20)):
            assert np.allclose(answer, expected, rtol=1e-4, atol=1e-4)


def test_a_machine_without_a_compiler_fetches_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server loads the library that it builds."""
    root = tmp_path / "root"
    root.mkdir()
    for entry in ENVIRONMENT.root.iterdir():
        if entry.name != "backends":
            (root / entry.name).symlink_to(entry)
    library = next((ServerEnvironment(root).site / "onnxruntime" / "capi").glob("libonnxruntime.so.*"))
    monkeypatch.setenv("PATH", str(tmp_path))
    native.build(root / "backends" / "onnxruntime", library)
    monkeypatch.undo()
    monkeypatch.setitem(globals(), "ENVIRONMENT", ServerEnvironment(root))
    with served(tmp_path, lookup()) as server:
        assert ask(server, {"x": np.array([[1]], np.int64)}).as_numpy("y").tolist() == [[1.0]]


def test_the_error_of_a_failing_compiler_has_its_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "cc"
    fake.write_text("#!/bin/sh\necho no space left on device >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(MissingTool, match="no space left on device"):
        native.build(tmp_path / "backend", tmp_path / "libonnxruntime.so")


def test_the_source_compiles_without_a_warning(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler on this machine")
    flags: list[str | Path] = [*native.FLAGS, "-Wextra", "-Werror", "-o", tmp_path / "x.so"]
    command = [compiler, *flags, *native.SOURCE.glob("*.c")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
