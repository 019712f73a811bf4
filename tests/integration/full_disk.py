"""Packages a model on a disk that is too small, in its own mount namespace, for a real ENOSPC."""

import subprocess
import sys
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from shiplift.runtime.base.errors import StorageFull
from shiplift.runtime.model.tensors import dump_npz
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.kinds.exported import ExportedGraph
from shiplift.runtime.records.model import Isolation, ModelVersion, ParityCase
from shiplift.runtime.records.precision import Candidate, Candidates
from shiplift.runtime.records.site import Machine, Site
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.spec.target import Target
from shiplift.runtime.store.artifacts import ArtifactStore
from tests.packages import packaged


def main(small: Path) -> int:
    small.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(small)], check=True)
    model = small / "model"
    model.mkdir()
    weights = numpy_helper.from_array(np.random.default_rng(0).normal(size=(512, 512)).astype(np.float32), "w")
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 512]) for n in ("x", "y")]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", value[:1], value[1:], [weights])
    onnx_model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
    (model / "model.onnx").write_bytes(onnx_model.SerializeToString())
    store = ArtifactStore((small / "artifacts").as_uri())
    tree = store.put_tree(model)
    spec = Signature(
        inputs=(TensorSpec(name="x", datatype="FP32", shape=(-1, 512)),),
        outputs=(TensorSpec(name="y", datatype="FP32", shape=(-1, 512)),),
    )
    x = np.ones((2, 512), np.float32)
    exported = ExportedGraph(
        model=tree,
        signature=spec,
        opset=20,
        parity=(ParityCase(inputs="example", batch=2, max_abs=0, max_rel=0),),
        reference=store.put_bytes(dump_npz({"input/x": x, "output/y": x})),
        isolation=Isolation(network="none", files="none", memory_limit_mb=1, timeout_s=1),
    )
    candidates = Candidates(target="t", metric=None, candidates=(Candidate(precision="fp32", model=tree),))
    version = ModelVersion(name="m", version=1, digest="", flavor="onnx", files=Artifact(sha256="0" * 64, size_bytes=0))
    site = Site(
        home=str(small),
        registry_uri="",
        artifacts_uri=store.uri,
        server_environment="",
        place=Machine(http="", grpc="", metrics=""),
    )
    try:
        packaged(site, Target(), version, exported, candidates)
    except StorageFull as error:
        print(error)
        print("left behind:", len(list(small.glob("shiplift-*"))))
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
