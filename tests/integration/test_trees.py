"""A release's stages with an ensemble of trees: exported, proved, scored, packaged and served as it was trained."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mlflow.sklearn
import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier

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
TARGET = Target(engine="trees")


@pytest.mark.slow
def test_a_forest_is_served_as_it_was_trained_to_many_clients_at_once(tmp_path: Path) -> None:
    """The votes of 17 rows tie: only sums in the author's precision and order give the author's labels."""
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 4, size=(400, 5)).astype(np.float32)
    labels = np.array([3, 5, 9])[rng.integers(0, 3, 400)]
    forest = RandomForestClassifier(6, random_state=0).fit(rows, labels)
    place, folder = site(tmp_path), tmp_path / "source"
    mlflow.sklearn.save_model(
        forest,
        str(folder),
        serialization_format="skops",
        skops_trusted_types=["sklearn.tree._tree.Tree"],
        pip_requirements=[],
    )
    store = ArtifactStore(place.artifacts_uri)
    files = store.put_tree(folder)
    version = ModelVersion(name="votes", version=1, digest=files.sha256, flavor="sklearn", files=files)
    contract = DeclaredGraph(
        signature=Signature(inputs=(tensor("x", -1, 5),), outputs=(tensor("label", -1, datatype="INT64"),)),
        example=store.put_bytes(dump_npz({"x": rows})),
    )

    exported = export(place, version, contract, Conversion(timeout_s=120), Datasets(), Data(), RecordedRequests())
    assert isinstance(exported, ExportedGraph)
    assert exported.trees is not None, exported.notes
    assert exported.trees.form.classes == (3, 5, 9)
    offered = quantize(place, TARGET, exported, Datasets(), Data(), Quantization())
    assert [(each.engine, each.method, each.model) for each in offered.kept] == [
        ("trees", "as trained", exported.trees.files)
    ]
    package = packaged(place, TARGET, version, exported, offered).packages[0]

    tree, name = store.fetch(package.repository, tmp_path / "package"), serving_name(package.model)
    install(tree, tmp_path / "models", source=name, name=name)
    with (
        private_server(
            ServerEnvironment(default_root()), tmp_path / "models", Features(cache_mb=0), log=tmp_path / "log"
        ) as server,
        TritonClient(server.grpc, repository_key=server.key) as client,
        ThreadPoolExecutor(16) as pool,
    ):
        client.load(name)
        check_package(client, name, package, load_npz(tree / GOLDEN))
        answers = list(pool.map(lambda row: ask(server, {"x": row[None]}, name=name), rows))
    assert [int(answer.as_numpy("label").item()) for answer in answers] == forest.predict(rows).tolist()
    probabilities = np.concatenate([answer.as_numpy("probabilities") for answer in answers])
    assert (probabilities == forest.predict_proba(rows).astype(np.float32)).all()
