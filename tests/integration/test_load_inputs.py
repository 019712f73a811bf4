"""A load test's requests arrive unchanged: text, bytes of files, and lengths as drawn.

Each model looks its input up in a table, so that a wrong byte, word or length is an error in ONNX Runtime; a failed
request ends perf_analyzer.
"""

import base64
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from shiplift.runtime.base.errors import MeasurementFailed
from shiplift.runtime.measure.generator import Demand, LoadTarget, Window
from shiplift.runtime.measure.perf_analyzer import PerfAnalyzer
from shiplift.runtime.measure.requests import synthetic
from shiplift.runtime.model.logged_requests import recorded
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.records.serving import ServingConfig
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.serving.machine.server import Server, private_server
from shiplift.runtime.serving.triton.client import TritonClient
from shiplift.runtime.serving.triton.command_line import Features
from shiplift.runtime.serving.triton.config import ModelDescription
from shiplift.runtime.serving.triton.environment import ServerEnvironment, default_root
from shiplift.runtime.serving.triton.repository import golden_arrays, install, write_package
from shiplift.runtime.spec.measurement import DynamicShape, Load
from shiplift.runtime.spec.serving_settings import Serving

pytestmark = pytest.mark.integration
ENVIRONMENT = ServerEnvironment(default_root())
ANSWER = (TensorSpec(name="y", datatype="INT64", shape=(-1, 1)),)


def graph(spec: TensorSpec, nodes: list[Any], constants: dict[str, Any]) -> bytes:
    """A model with one input `x` and one output `y` (INT64, batch x 1)."""
    kinds = {"INT64": TensorProto.INT64, "UINT8": TensorProto.UINT8, "BYTES": TensorProto.STRING}
    dims = [f"d{axis}" if size == -1 else size for axis, size in enumerate(spec.shape)]
    onnx_graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kinds[spec.datatype], dims)],
        [helper.make_tensor_value_info("y", TensorProto.INT64, ["d0", 1])],
        [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 3)]
    return bytes(helper.make_model(onnx_graph, ir_version=10, opset_imports=opsets).SerializeToString())


def words_only(*known: str) -> bytes:
    """A model that returns a word's number and fails on unknown words."""
    encoder = helper.make_node(
        "LabelEncoder",
        ["x"],
        ["at"],
        domain="ai.onnx.ml",
        keys_strings=list(known),
        values_int64s=list(range(len(known))),
        default_int64=len(known),
    )
    nodes = [encoder, helper.make_node("Gather", ["table", "at"], ["y"])]
    return graph(TEXT.inputs[0], nodes, {"table": list(range(len(known)))})


def jpegs_only() -> bytes:
    """A model that returns the sum of a file's bytes and fails unless it begins like a JPEG."""
    nodes = [
        helper.make_node("Cast", ["x"], ["bytes"], to=TensorProto.INT64),
        helper.make_node("Slice", ["bytes", "zero", "two", "one"], ["start"]),
        helper.make_node("Sub", ["start", "jpeg"], ["off"]),
        helper.make_node("Abs", ["off"], ["distance"]),
        helper.make_node("ReduceMax", ["distance", "one"], ["at"], keepdims=1),
        helper.make_node("Gather", ["zero", "at"], ["none"]),
        helper.make_node("ReduceSum", ["bytes", "one"], ["sum"], keepdims=1),
        helper.make_node("Reshape", ["none", "column"], ["nothing"]),
        helper.make_node("Add", ["sum", "nothing"], ["y"]),
    ]
    constants = {"zero": [0], "one": [1], "two": [2], "jpeg": [[0xFF, 0xD8]], "column": [-1, 1]}
    return graph(FILE.inputs[0], nodes, constants)


def all_lengths_but(refused: int) -> bytes:
    """A model that returns the sum of a text's tokens and fails on texts of one length."""
    nodes = [
        helper.make_node("Shape", ["x"], ["length"], start=1),
        helper.make_node("Equal", ["length", "refused"], ["is_it"]),
        helper.make_node("Cast", ["is_it"], ["at"], to=TensorProto.INT64),
        helper.make_node("Gather", ["zero", "at"], ["nothing"]),
        helper.make_node("ReduceSum", ["x", "one"], ["sum"], keepdims=1),
        helper.make_node("Add", ["sum", "nothing"], ["y"]),
    ]
    return graph(TOKENS.inputs[0], nodes, {"zero": [0], "one": [1], "refused": [refused]})


TEXT = Signature(inputs=(TensorSpec(name="x", datatype="BYTES", shape=(-1, 1)),), outputs=ANSWER)
FILE = Signature(inputs=(TensorSpec(name="x", datatype="UINT8", shape=(-1, -1)),), outputs=ANSWER)
TOKENS = Signature(inputs=(TensorSpec(name="x", datatype="INT64", shape=(-1, -1)),), outputs=ANSWER)


@contextmanager
def served(work: Path, model: bytes, signature: Signature, example: Any) -> Iterator[tuple[Server, TritonClient]]:
    """Serves the model as `m` on its own server."""
    (work / "onnx").mkdir()
    (work / "onnx" / "model.onnx").write_bytes(model)
    config = ServingConfig(max_batch=4, queue_delay_us=0, instances=1, threads=1)
    description = ModelDescription(name="m", version=1, signature=signature, config=config, serving=Serving())
    (work / "package").mkdir()
    package = write_package(
        work / "package",
        description,
        work / "onnx",
        "bundled",
        example={"x": example},
        golden=golden_arrays({"x": example}, {"y": np.zeros((len(example), 1), np.int64)}),
    )
    install(package, work / "models", source="m", name="m")
    with (
        private_server(ENVIRONMENT, work / "models", Features(), log=work / "log") as server,
        TritonClient(server.grpc, repository_key=server.key) as client,
    ):
        client.load("m")
        yield server, client


def failed_under_load(
    work: Path, model: bytes, signature: Signature, example: Any, sent: list[Arrays], protocol: Any = "grpc"
) -> int:
    """Sends the requests in turn for a while; returns how many failed."""
    generator = PerfAnalyzer(ENVIRONMENT)
    file = generator.write_requests(work / "requests.json", signature, sent)
    with served(work, model, signature, example) as (server, client):
        target = LoadTarget(model="m", address=server.grpc if protocol == "grpc" else server.http, requests=file)
        window = Window(window_ms=150, attempts=1, protocol=protocol)
        point = generator.measure(target, Demand(concurrency=2), window, work).point
        assert point.throughput_per_s * 0.15 > len(sent), "not every request was sent"
        return client.failures("m")


def jpeg() -> bytes:
    """A small real picture as a JPEG file."""
    from matplotlib.image import imsave

    file = io.BytesIO()
    imsave(file, np.linspace(0, 1, 12).reshape(3, 4), format="jpeg")
    return file.getvalue()


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_recorded_text_arrives_unchanged(tmp_path: Path, protocol: str) -> None:
    words = ["größe", "", "two words", "模型"]
    bodies = [{"inputs": [{"name": "x", "shape": [1, 1], "datatype": "BYTES", "data": [[word]]}]} for word in words]
    sent = recorded(json.dumps(bodies).encode(), "requests.json", TEXT)
    example = np.array([["größe"]], dtype=object)
    assert failed_under_load(tmp_path, words_only(*words), TEXT, example, sent, protocol) == 0


def test_a_word_that_was_not_recorded_would_be_noticed(tmp_path: Path) -> None:
    sent = [{"x": np.array([word], dtype=object)} for word in ("known", "unknown")]
    with pytest.raises(MeasurementFailed):
        failed_under_load(tmp_path, words_only("known"), TEXT, np.array([["known"]], dtype=object), sent)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_the_bytes_of_a_recorded_jpeg_arrive_unchanged(tmp_path: Path, protocol: str) -> None:
    picture = jpeg()
    assert b"\x00" in picture
    data = {"b64": base64.b64encode(picture).decode()}
    body = {"inputs": [{"name": "x", "shape": [1, len(picture)], "datatype": "UINT8", "data": data}]}
    sent = recorded(json.dumps(body).encode(), "requests.json", FILE)
    assert failed_under_load(tmp_path, jpegs_only(), FILE, np.array([[0xFF, 0xD8, 0]], np.uint8), sent, protocol) == 0


@pytest.mark.slow
def test_bytes_that_are_not_a_jpeg_would_be_noticed(tmp_path: Path) -> None:
    sent = [{"x": np.frombuffer(b"GIF89a", np.uint8)}]
    with pytest.raises(MeasurementFailed):
        failed_under_load(tmp_path, jpegs_only(), FILE, np.array([[0xFF, 0xD8, 0]], np.uint8), sent)


@pytest.mark.parametrize(
    ("refused", "noticed"), [(16, False), (8, True), pytest.param(64, True, marks=pytest.mark.slow)]
)
def test_requests_have_the_lengths_drawn_from_the_spec_and_not_the_example_s(
    tmp_path: Path, refused: int, *, noticed: bool
) -> None:
    example = np.ones((2, 16), np.int64)
    shapes = (DynamicShape(input="x", distribution="choice", lengths=(8, 64)),)
    sent = synthetic({"x": example}, TOKENS, Load(shapes=shapes))
    warm_up = np.ones((2, 3), np.int64)
    if noticed:
        with pytest.raises(MeasurementFailed):
            failed_under_load(tmp_path, all_lengths_but(refused), TOKENS, warm_up, sent)
    else:
        assert failed_under_load(tmp_path, all_lengths_but(refused), TOKENS, warm_up, sent) == 0
