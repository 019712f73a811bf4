"""Small packages that answer `factor` times their input, made without a release; and the step that makes others."""

from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from shiplift.runtime.base.names import serving_name
from shiplift.runtime.composition.incumbents import Incumbents, Members
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.records.kinds.package import GraphPackage, Package
from shiplift.runtime.records.model import Datasets, ModelVersion
from shiplift.runtime.records.precision import Candidates
from shiplift.runtime.records.promotion import Champion
from shiplift.runtime.records.serving import ServingConfig
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.records.verdict import Packages
from shiplift.runtime.serving.triton.config import ModelDescription
from shiplift.runtime.serving.triton.repository import golden_arrays, write_package
from shiplift.runtime.spec.groups import Acceptance, ServingSpace
from shiplift.runtime.spec.measurement import ScoreTarget, SearchSpace
from shiplift.runtime.spec.model import Data, Quality, Quantization
from shiplift.runtime.spec.serving_settings import Serving
from shiplift.runtime.spec.target import Target
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.steps.package import package

SIGNATURE = Signature(
    inputs=(TensorSpec(name="input", datatype="FP32", shape=(-1, 4)),),
    outputs=(TensorSpec(name="output", datatype="FP32", shape=(-1, 4)),),
)
ROW = np.arange(4, dtype=np.float32).reshape(1, 4)
_SECTIONS: dict[str, Any] = {
    "datasets": Datasets(),
    "data": Data(),
    "quality": Quality(),
    "score_target": ScoreTarget(),
    "quantization": Quantization(),
    "serving": Serving(),
    "search_space": SearchSpace(),
    "champion": Champion(),
    "members": Members(),
}
_CONFIG = ServingConfig(max_batch=8, queue_delay_us=0, instances=1, threads=1)


def multiplying(
    store: ArtifactStore,
    work: Path,
    model: str,
    *,
    factor: float,
    version: int = 1,
    broken: bool = False,
    mixing: bool = False,
    questions: Artifact | None = None,
) -> Package:
    """Stores the package of a model; a `broken` one can be fetched but not loaded.

    A `mixing` one moves each answer halfway towards the mean of its batch.
    """
    folder, tree = work / f"{model}-{version}-onnx", work / f"{model}-{version}"
    folder.mkdir(parents=True)
    tree.mkdir()
    file = folder / "model.onnx"
    file.write_bytes(b"no ONNX") if broken else file.write_bytes(_onnx(factor, mixing=mixing))
    described = ModelDescription(
        name=serving_name(model), version=version, signature=SIGNATURE, config=_CONFIG, serving=Serving()
    )
    rows = np.concatenate([ROW, ROW + 1])
    golden = golden_arrays({"input": rows}, {"output": np.float32(factor) * rows})
    write_package(tree, described, folder, "bundled", example={"input": rows}, golden=golden)
    return GraphPackage(
        target="local-cpu",
        server="bundled",
        model=model,
        version=version,
        precision="fp32",
        config=_CONFIG,
        repository=store.put_tree(tree),
        signature=SIGNATURE,
        questions=questions,
    )


def _onnx(factor: float, *, mixing: bool) -> bytes:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in ("input", "output")]
    constant = numpy_helper.from_array(np.array(factor, np.float32), "factor")
    nodes, constants = [helper.make_node("Mul", ["input", "factor"], ["own" if mixing else "output"])], [constant]
    if mixing:
        nodes.append(helper.make_node("ReduceMean", ["own", "batch"], ["mean"], keepdims=1))
        nodes.append(helper.make_node("Mean", ["own", "mean"], ["output"]))
        constants.append(numpy_helper.from_array(np.array([0], np.int64), "batch"))
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
    return bytes(model.SerializeToString())


def packaged(
    site: Site, target: Target, version: ModelVersion, exported: Exported, candidates: Candidates, **changes: Any
) -> Packages:
    """What the step `package` makes, with sections of the spec by name; the others are as they are by default."""
    sections = _SECTIONS | changes

    def of(kind: type[Record]) -> Any:
        return kind(**{name: sections[name] for name in kind.model_fields})

    return package(site, target, version, exported, candidates, of(Acceptance), of(ServingSpace), of(Incumbents))
