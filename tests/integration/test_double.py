"""A release's stages with a model that is wrong in FP32: exported, proved, scored, packaged and served in FP64."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mlflow.sklearn
import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.naive_bayes import GaussianNB

from shiplift.runtime.base.names import serving_name
from shiplift.runtime.model.tensors import dump_npz, load_npz
from shiplift.runtime.records.kinds.contract import DeclaredGraph
from shiplift.runtime.records.kinds.exported import ExportedGraph
from shiplift.runtime.records.model import Datasets, ModelVersion, RecordedRequests
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.serving.machine.server import private_server
from shiplift.runtime.serving.triton.client import TritonClient, check_package
from shiplift.runtime.serving.triton.command_line import Features
from shiplift.runtime.serving.triton.environment import ServerEnvironment, default_root
from shiplift.runtime.serving.triton.repository import GOLDEN, install
from shiplift.runtime.spec.model import Conversion, Data, Quantization
from shiplift.runtime.spec.target import Target
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.steps.export import export
from shiplift.steps.quantize import quantize
from tests.integration.backends import ask
from tests.packages import packaged
from tests.unit.examples import site, tensor

pytestmark = pytest.mark.integration
TARGET = Target()


@pytest.mark.slow
def test_naive_bayes_on_digits_is_served_in_fp64_to_many_clients_at_once(tmp_path: Path) -> None:
    """Its logarithms of densities are some ten thousands, and differ by less than FP32 resolves."""
    rows, labels = load_digits(return_X_y=True)
    model, place, folder = GaussianNB().fit(rows, labels), site(tmp_path), tmp_path / "source"
    mlflow.sklearn.save_model(model, str(folder), serialization_format="skops", pip_requirements=[])
    store = ArtifactStore(place.artifacts_uri)
    files = store.put_tree(folder)
    version = ModelVersion(name="digits", version=1, digest=files.sha256, flavor="sklearn", files=files)
    contract = DeclaredGraph(
        signature=Signature(
            inputs=(tensor("x", -1, 64, datatype="FP64"),), outputs=(tensor("label", -1, datatype="INT64"),)
        ),
        example=store.put_bytes(dump_npz({"x": rows[:50]})),
    )

    exported = export(place, version, contract, Conversion(timeout_s=120), Datasets(), Data(), RecordedRequests())
    assert isinstance(exported, ExportedGraph)
    assert exported.form == "FP64 graph", exported.notes
    assert [(each.name, bool(each.dropped)) for each in exported.forms] == [("FP32 graph", True), ("FP64 graph", False)]
    offered = quantize(place, TARGET, exported, Datasets(), Data(), Quantization())
    assert [(each.engine, each.precision) for each in offered.kept] == [("onnxruntime", "fp64")], offered
    package = packaged(place, TARGET, version, exported, offered).packages[0]

    tree, name = store.fetch(package.repository, tmp_path / "package"), serving_name(package.model)
    install(tree, tmp_path / "models", source=name, name=name)
    asked = np.random.default_rng(1).permutation(rows)[:500] + np.random.default_rng(2).normal(size=(500, 64))
    with (
        private_server(
            ServerEnvironment(default_root()), tmp_path / "models", Features(cache_mb=0), log=tmp_path / "log"
        ) as server,
        TritonClient(server.grpc, repository_key=server.key) as client,
        ThreadPoolExecutor(16) as pool,
    ):
        client.load(name)
        check_package(client, name, package, load_npz(tree / GOLDEN))
        answers = list(pool.map(lambda row: ask(server, {"x": row[None]}, name=name), asked))
    assert [int(answer.as_numpy("label").item()) for answer in answers] == model.predict(asked).tolist()
    probabilities = np.concatenate([answer.as_numpy("probabilities") for answer in answers])
    np.testing.assert_allclose(probabilities, model.predict_proba(asked), 1e-5, 1e-6)
