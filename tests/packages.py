"""Small packages that answer `factor` times their input, made without a release."""

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from shiplift.runtime.base.names import serving_name
from shiplift.runtime.records.serving import GraphPackage, Package, ServingConfig
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.serving.triton.config import ModelDescription
from shiplift.runtime.serving.triton.repository import golden_arrays, write_package
from shiplift.runtime.spec.serving import Serving
from shiplift.runtime.store.artifacts import ArtifactStore

SIGNATURE = Signature(
    inputs=(TensorSpec(name="input", datatype="FP32", shape=(-1, 4)),),
    outputs=(TensorSpec(name="output", datatype="FP32", shape=(-1, 4)),),
)
ROW = np.arange(4, dtype=np.float32).reshape(1, 4)
_CONFIG = ServingConfig(max_batch=8, queue_delay_us=0, instances=1, threads=1)


def multiplying(
    store: ArtifactStore, work: Path, model: str, *, factor: float, version: int = 1, broken: bool = False
) -> Package:  # fmt: skip
    """Stores the package of a model; a `broken` one can be fetched but not loaded."""
    folder, package = work / f"{model}-{version}-onnx", work / f"{model}-{version}"
    folder.mkdir(parents=True)
    package.mkdir()
    file = folder / "model.onnx"
    file.write_bytes(b"no ONNX") if broken else file.write_bytes(_onnx(factor))
    described = ModelDescription(
        name=serving_name(model), version=version, signature=SIGNATURE, config=_CONFIG, serving=Serving()
    )
    rows = np.concatenate([ROW, ROW + 1])
    golden = golden_arrays({"input": rows}, {"output": np.float32(factor) * rows})
    write_package(package, described, folder, "bundled", example={"input": rows}, golden=golden)
    return GraphPackage(
        target="local-cpu", server="bundled", model=model, version=version, precision="fp32", config=_CONFIG,
        repository=store.put_tree(package), signature=SIGNATURE,
    )  # fmt: skip


def _onnx(factor: float) -> bytes:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in ("input", "output")]
    constant = numpy_helper.from_array(np.array(factor, np.float32), "factor")
    node = helper.make_node("Mul", ["input", "factor"], ["output"])
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [constant])
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
    return bytes(model.SerializeToString())
