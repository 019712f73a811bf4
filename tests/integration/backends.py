"""The bundled server with small ONNX models on one of its own backends, for the tests of these."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tritonclient import grpc

from shiplift.runtime.model.onnx_models import signature_of
from shiplift.runtime.records.guards import Guard
from shiplift.runtime.records.precision import Engine, Precision
from shiplift.runtime.records.serving import Padding, ServingConfig
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.records.trees import TreesForm
from shiplift.runtime.serving.machine.server import Server, private_server
from shiplift.runtime.serving.triton.client import TritonClient
from shiplift.runtime.serving.triton.command_line import Features
from shiplift.runtime.serving.triton.config import ModelDescription, parse, render
from shiplift.runtime.serving.triton.environment import ServerEnvironment, default_root
from shiplift.runtime.serving.triton.repository import install, write_package
from shiplift.runtime.spec.serving_settings import Serving

ENVIRONMENT = ServerEnvironment(default_root())
TYPES = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
}
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


def unbatched() -> Any:
    """A graph whose answer has no row per sample, so that it fails in a server that makes batches."""
    nodes = [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)]
    return model(nodes, [("x", "FP32", ["n", 3])], [("y", "FP32", [])])


@contextmanager
def server_for(work: Path) -> Iterator[tuple[Server, TritonClient]]:
    with (
        private_server(ENVIRONMENT, work / "models", Features(cache_mb=0), log=work / "log") as server,
        TritonClient(server.grpc, repository_key=server.key) as client,
    ):
        yield server, client


def put(work: Path, onnx_model: Any, name: str = "m", **options: Any) -> None:
    """Adds a model to the server's repository, as `put_files` does."""
    folder = work / f"{name}-onnx"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(onnx_model.SerializeToString())
    put_files(work, folder, signature_of(onnx_model), name, **options)


def put_files(
    work: Path,
    folder: Path,
    signature: Signature,
    name: str = "m",
    *,
    instances: int = 1,
    threads: int = 1,
    delay_us: int = 0,
    max_batch: int = 16,
    serving: Serving | None = None,
    engine: Engine = "onnxruntime",
    precision: Precision = "fp32",
    settings: dict[str, str] | None = None,
    padding: Padding | None = None,
    buckets: tuple[int, ...] = (),
    trees: TreesForm | None = None,
    guards: tuple[Guard, ...] = (),
    example: dict[str, NDArray[Any]] | None = None,
) -> None:
    """Adds the files of a model to the server's repository; `settings` are more parameters of its configuration.

    The warm-up, if `serving` asks for one, sends the `example`.
    """
    description = ModelDescription(
        name=name,
        version=1,
        signature=signature,
        serving=serving or Serving(warmup=False),
        engine=engine,
        precision=precision,
        padding=padding,
        trees=trees,
        config=ServingConfig(
            max_batch=max_batch, queue_delay_us=delay_us, instances=instances, threads=threads, buckets=buckets
        ),
    )
    package = work / f"{name}-package"
    package.mkdir()
    install(
        write_package(package, description, folder, "bundled", example=example or {}, golden={}, guards=guards),
        work / "models",
        source=name,
        name=name,
    )
    file = work / "models" / name / "config.pbtxt"
    config = parse(file.read_text())
    for key, value in (settings or {}).items():
        config.parameters[key].string_value = value
    file.write_text(render(config))


@contextmanager
def served(work: Path, onnx_model: Any, **options: Any) -> Iterator[Server]:
    put(work, onnx_model, **options)
    with server_for(work) as (server, client):
        client.load("m")
        yield server


def ask(
    server: Server,
    arrays: dict[str, NDArray[Any]],
    *,
    only: str = "",
    name: str = "m",
    options: dict[str, Any] | None = None,
) -> Any:
    inputs = []
    for key, array in arrays.items():
        inputs.append(grpc.InferInput(key, list(array.shape), NAMES.get(array.dtype, "BYTES")))
        inputs[-1].set_data_from_numpy(array)
    outputs = [grpc.InferRequestedOutput(only)] if only else None
    return grpc.InferenceServerClient(server.grpc).infer(name, inputs, outputs=outputs, **(options or {}))


def two_by_two() -> Any:
    """Sums and differences of two inputs, one of which is a scalar per sample."""
    nodes = [
        helper.make_node("Unsqueeze", ["b", "one"], ["column"]),
        helper.make_node("Add", ["a", "column"], ["sum"]),
        helper.make_node("Sub", ["a", "column"], ["difference"]),
        helper.make_node("ReduceSum", ["sum", "one"], ["total"], keepdims=0),
    ]
    return model(
        nodes,
        [("a", "FP32", ["n", "m"]), ("b", "FP32", ["n"])],
        [("sum", "FP32", ["n", "m"]), ("difference", "FP32", ["n", "m"]), ("total", "FP32", ["n"])],
        (numpy_helper.from_array(np.array([1], np.int64), "one"),),
    )


def counts(server: Server) -> tuple[int, int]:
    """How many requests of the model succeeded and failed; the server counts one after its answer is sent."""
    stats = grpc.InferenceServerClient(server.grpc).get_inference_statistics("m").model_stats[0].inference_stats
    return stats.success.count, stats.fail.count


def lookup(values: Sequence[float] = (0, 1, 2, 3)) -> Any:
    """A table lookup by row: an index outside the table is an error while the model runs."""
    table = numpy_helper.from_array(np.array(values, dtype=np.float32), "table")
    nodes = [helper.make_node("Gather", ["table", "x"], ["y"])]
    return model(nodes, [("x", "INT64", ["n", 1])], [("y", "FP32", ["n", 1])], (table,))


def wide(mb: int) -> Any:
    """A model that consists almost only of weights."""
    side = int((mb * 2**20 / 4) ** 0.5)
    weights = numpy_helper.from_array(np.random.default_rng(0).standard_normal((side, side), np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    return model(nodes, [("x", "FP32", ["n", side])], [("y", "FP32", ["n", side])], (weights,))


def own_memory_mb(server: Server) -> float:
    """The memory that the server allocated, in MiB; unlike its libraries' pages, no other server shares it."""
    family = [psutil.Process(server.process.pid), *psutil.Process(server.process.pid).children(recursive=True)]
    status = [Path(f"/proc/{process.pid}/status").read_text() for process in family]
    return sum(int(line.split()[1]) for text in status for line in text.splitlines() if "RssAnon:" in line) / 1024
