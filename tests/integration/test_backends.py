"""What the bundled server's own backends have in common: they build, and every request gets its own correct answer."""

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import helper
from tritonclient import grpc

from shiplift.runtime.base.errors import MissingTool, ServerFailed
from shiplift.runtime.records.precision import Engine
from shiplift.runtime.serving.triton.building import native
from shiplift.runtime.serving.triton.environment import ServerEnvironment
from shiplift.runtime.spec.serving_settings import Serving
from tests.integration import backends
from tests.integration.backends import (
    DTYPES,
    ENVIRONMENT,
    TYPES,
    ask,
    lookup,
    model,
    own_memory_mb,
    put,
    served,
    server_for,
    two_by_two,
    unbatched,
    wide,
)
from tests.integration.conftest import until

pytestmark = pytest.mark.integration
ENGINES = ("onnxruntime", "openvino")  # those of ONNX models
EXACTLY, NEARLY = (0.0, 0.0), (1e-5, 1e-6)  # relative and absolute tolerance


@pytest.mark.parametrize("engine", ENGINES)
def test_every_data_type_is_returned_unchanged(engine: Engine, tmp_path: Path) -> None:
    for kind in TYPES:
        identity = model([helper.make_node("Identity", ["x"], ["y"])], [("x", kind, ["n", 3])], [("y", kind, ["n", 3])])
        put(tmp_path, identity, kind, engine=engine)
    with server_for(tmp_path) as (server, client):
        for kind in TYPES:
            client.load(kind)
            x = np.arange(6).reshape(2, 3).astype(DTYPES[kind])
            y = ask(server, {"x": x}, name=kind).as_numpy("y")
            assert y.dtype == x.dtype, kind
            assert (y == x).all(), kind


@pytest.mark.parametrize(
    ("engine", "settings", "close"),
    [
        ("onnxruntime", {}, EXACTLY),
        ("openvino", {"NUM_STREAMS": "2"}, NEARLY),
        ("openvino", {"NUM_STREAMS": "1"}, NEARLY),
        ("openvino", {"NUM_STREAMS": "AUTO"}, NEARLY),
    ],
    ids=["onnxruntime", "openvino, a stream each", "openvino, a shared stream", "openvino, as many as it likes"],
)
def test_requests_of_many_shapes_and_sizes_at_once_each_get_their_own_answer(
    engine: Engine, settings: dict[str, str], close: tuple[float, float], tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    requests = [
        {"a": rng.normal(size=(n, m)).astype(np.float32), "b": rng.normal(size=(n, 1)).astype(np.float32)}
        for n, m in zip(rng.integers(1, 6, 300), rng.choice([2, 3, 7], 300), strict=True)
    ]
    with (
        served(tmp_path, two_by_two(), instances=2, delay_us=2000, engine=engine, settings=settings) as server,
        ThreadPoolExecutor(16) as pool,
    ):
        answers = list(pool.map(lambda arrays: ask(server, arrays), requests))
        client, asked = grpc.InferenceServerClient(server.grpc), sum(len(arrays["a"]) for arrays in requests)
        # A request is counted after it was answered.
        assert until(lambda: client.get_inference_statistics("m").model_stats[0].inference_count == asked)
        stats = client.get_inference_statistics("m").model_stats[0]
    for arrays, answer in zip(requests, answers, strict=True):
        a, b = arrays["a"], arrays["b"]
        assert np.allclose(answer.as_numpy("sum"), a + b, *close)
        assert np.allclose(answer.as_numpy("difference"), a - b, *close)
        assert np.allclose(answer.as_numpy("total"), (a + b).sum(1, keepdims=True), atol=1e-4)
    assert stats.execution_count < len(requests)  # some were batched


@pytest.mark.parametrize("engine", ENGINES)
def test_only_the_outputs_that_were_asked_for_are_sent(engine: Engine, tmp_path: Path) -> None:
    arrays = {"a": np.ones((1, 2), np.float32), "b": np.ones((1, 1), np.float32)}
    with served(tmp_path, two_by_two(), engine=engine) as server:
        answer = ask(server, arrays, only="difference").get_response()
    assert [output.name for output in answer.outputs] == ["difference"]


@pytest.mark.parametrize("engine", ENGINES)
def test_instances_share_their_weights_and_free_them(engine: Engine, tmp_path: Path) -> None:
    put(tmp_path, wide(128), instances=4, engine=engine)
    with server_for(tmp_path) as (server, client):
        before = own_memory_mb(server)
        client.load("m")
        assert 128 <= own_memory_mb(server) - before < 2.5 * 128  # the weights, and a copy packed for the processor
        client.unload("m")
        until(lambda: own_memory_mb(server) - before < 0.5 * 128)


@pytest.mark.parametrize("engine", ENGINES)
def test_more_threads_per_instance_give_the_same_answers(engine: Engine, tmp_path: Path) -> None:
    onnx_model = wide(1)
    side = onnx_model.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    x = np.random.default_rng(1).normal(size=(8, side)).astype(np.float32)
    expected = ort.InferenceSession(onnx_model.SerializeToString()).run(None, {"x": x})[0]
    with served(tmp_path, onnx_model, instances=2, threads=2, engine=engine) as server, ThreadPoolExecutor(4) as pool:
        for answer in pool.map(lambda _: ask(server, {"x": x}).as_numpy("y"), range(20)):
            assert np.allclose(answer, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_model_whose_warm_up_fails_does_not_load_however_often(engine: Engine, tmp_path: Path) -> None:
    put(tmp_path, unbatched(), engine=engine, serving=Serving(), example={"x": np.ones((1, 3), np.float32)})
    with server_for(tmp_path) as (_, client):
        for _ in range(10):
            with pytest.raises(ServerFailed, match="failed to run warmup sample"):
                client.load("m")
        assert not client.ready("m")
        assert client.live()


@pytest.mark.slow
def test_a_machine_without_a_compiler_fetches_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server loads the library that it builds."""
    root = tmp_path / "root"
    root.mkdir()
    for entry in ENVIRONMENT.root.iterdir():
        if entry.name != "backends":
            (root / entry.name).symlink_to(entry)
    monkeypatch.setenv("PATH", str(tmp_path))
    native.build_all(root / "backends", ServerEnvironment(root).site)
    monkeypatch.undo()
    monkeypatch.setattr(backends, "ENVIRONMENT", ServerEnvironment(root))
    with served(tmp_path, lookup()) as server:
        assert ask(server, {"x": np.array([[1]], np.int64)}).as_numpy("y").tolist() == [[1.0]]


def test_the_error_of_a_failing_compiler_has_its_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "cc"
    fake.write_text("#!/bin/sh\necho no space left on device >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(MissingTool, match="no space left on device"):
        native.build_all(tmp_path / "backends", ENVIRONMENT.site)


@pytest.mark.parametrize("backend", native.BACKENDS, ids=lambda backend: backend.name)
def test_the_source_compiles_without_a_warning(backend: native.Backend, tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler on this machine")
    flags: list[str | Path] = [*native.FLAGS, "-Wextra", "-Werror", "-o", tmp_path / "program"]
    for source in backend.programs.values():
        done = subprocess.run(
            [compiler, *flags, *source, *native.LIBRARIES], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
