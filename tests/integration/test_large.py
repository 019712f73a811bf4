"""A model with more weights than a protobuf can hold (2 GiB): exported, stored and fetched in pieces."""

import resource
from pathlib import Path

import numpy as np
import pytest
import torch

from shiplift.runtime.base.errors import ArtifactCorrupt
from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.tensors import dump_npz
from shiplift.runtime.records.kinds.contract import DeclaredGraph
from shiplift.runtime.records.model import Datasets, ModelVersion, RecordedRequests
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.spec.model import Conversion, Data
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.steps.export import export
from tests.unit.examples import site

pytestmark = [pytest.mark.large, pytest.mark.timeout(600)]
WIDTH, LAYERS = 16640, 2  # just over 2 GiB
SIZE = 4 * LAYERS * WIDTH**2


def program() -> torch.export.ExportedProgram:
    """Two layers of a gibibyte each, with weights that are cheap to compute."""
    layers = [torch.nn.utils.skip_init(torch.nn.Linear, WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
    for layer in layers:
        row = torch.arange(WIDTH, dtype=torch.float32).remainder(7).sub(3).div(WIDTH)
        layer.weight.data = row.repeat(WIDTH, 1)
    batch = torch.export.Dim("batch")
    model = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1]).eval()
    return torch.export.export(model, (torch.ones(2, WIDTH),), dynamic_shapes=({0: batch},))


def test_a_model_over_two_gibibytes_is_exported_stored_and_verified_in_pieces(tmp_path: Path) -> None:
    store = ArtifactStore(site(tmp_path).artifacts_uri)
    source = tmp_path / "source"
    (source / "data").mkdir(parents=True)
    (source / "MLmodel").write_text("flavors: {pytorch: {model_data: data}}\n")
    torch.export.save(program(), source / "data" / "model.pt2")
    files = store.put_tree(source)
    (source / "data" / "model.pt2").unlink()
    x, y = (TensorSpec(name=name, datatype="FP32", shape=(-1, WIDTH)) for name in ("x", "y"))
    example = np.random.default_rng(0).normal(size=(3, WIDTH)).astype(np.float32)
    version = ModelVersion(name="big", version=1, digest=files.sha256, flavor="pytorch", files=files)
    contract = DeclaredGraph(
        signature=Signature(inputs=(x,), outputs=(y,)), example=store.put_bytes(dump_npz({"x": example}))
    )

    conversion = Conversion(memory_mb=12_000, timeout_s=300)
    exported = export(site(tmp_path), version, contract, conversion, Datasets(), Data(), RecordedRequests())

    assert exported.model.size_bytes > SIZE > 2**31
    assert max(case.max_rel for case in exported.parity) < 1e-3
    assert {name.split("-")[0] for name in store.manifest(exported.model)} == {"model.onnx", "weights"}
    folder = store.fetch(exported.model, tmp_path / "fetched")
    assert (folder / "model.onnx").stat().st_size < 1 << 20
    answers = onnx_models.answer(onnx_models.session(folder / "model.onnx"), {"x": example})
    assert answers["y"].shape == (3, WIDTH)
    print(
        f"peak of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB, of its largest "
        f"child: {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20:.1f} GiB"
    )

    sha256 = next(digest for name, digest in store.manifest(exported.model).items() if name.startswith("weights"))
    (blob,) = (tmp_path / "artifacts").rglob(sha256)
    with blob.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"?")
    with pytest.raises(ArtifactCorrupt):
        store.fetch(exported.model, tmp_path / "again")
