"""The whole export of a model logged as ONNX, sandbox included."""

import json
import shlex
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from shiplift.runtime.base.errors import ArtifactCorrupt, ExportFailed
from shiplift.runtime.families import table
from shiplift.runtime.model.graph_digest import graph_digest
from shiplift.runtime.model.tensors import dump_npz, load_npz
from shiplift.runtime.records.kinds.contract import DeclaredGraph
from shiplift.runtime.records.kinds.exported import ExportedGraph
from shiplift.runtime.records.model import Datasets, ModelVersion, RecordedRequests
from shiplift.runtime.records.proof import Counterexample
from shiplift.runtime.spec.model import Conversion, Data
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.steps.export import export
from tests.unit.examples import perceptron, signature, site

EXAMPLE = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)


class Bench:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.store = ArtifactStore(site(home).artifacts_uri)
        self.folder = home / "source"
        perceptron(self.folder / "model.onnx")
        (self.folder / "MLmodel").write_text("flavors: {onnx: {data: model.onnx}}\n")

    def version(self) -> ModelVersion:
        files = self.store.put_tree(self.folder)
        return ModelVersion(name="digits", version=1, digest=files.sha256, flavor="onnx", files=files)

    def export(self, version: ModelVersion | None = None) -> ExportedGraph:
        contract = DeclaredGraph(signature=signature(), example=self.store.put_bytes(dump_npz({"input": EXAMPLE})))
        logged = self.store.put_bytes(dump_npz({"input": EXAMPLE.repeat(5, axis=0), "label": np.zeros(15)}))
        datasets = Datasets(validation=logged, validation_name="validation.npz")
        conversion = Conversion(timeout_s=60)
        exported = export(
            site(self.home), version or self.version(), contract, conversion, datasets, Data(), RecordedRequests()
        )
        assert isinstance(exported, ExportedGraph)
        return exported


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.slow
def test_a_model_is_converted_in_the_sandbox_and_compared_outside(bench: Bench, tmp_path: Path) -> None:
    result = bench.export()
    assert (result.signature, result.opset) == (signature(), 20)
    assert result.graph == graph_digest(bench.store.fetch(result.model, tmp_path / "again") / "model.onnx")
    assert [(case.inputs, case.batch) for case in result.parity] == [
        ("example", 3),
        ("random-1", 1),
        ("random-2", 2),
        ("random-7", 7),
    ]
    assert all(case.max_abs < 1e-6 and case.problem == "" for case in result.parity)
    assert result.proof
    assert {each.origin: each.rows for each in result.proof.asked}["validation"] == 15
    assert result.isolation
    assert (result.isolation.memory_limit_mb, result.isolation.timeout_s) == (4096, 60)
    reference = load_npz(bench.store.read(result.reference))
    assert {name: array.shape for name, array in reference.items()} == {"input/input": (3, 4), "output/output": (3, 3)}
    tree = bench.store.fetch(result.model, tmp_path / "fetched")
    onnx.checker.check_model(onnx.load(tree / "model.onnx"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "artifacts", "fetched", "source"]


def test_a_model_that_does_not_load_fails_with_its_own_words(bench: Bench) -> None:
    (bench.folder / "model.onnx").write_bytes(b"not a model")
    with pytest.raises(ExportFailed, match="the model does not load"):
        bench.export()


def test_files_that_are_not_what_was_admitted_are_not_loaded(bench: Bench) -> None:
    version = bench.version()
    for blob in (bench.home / "artifacts").rglob("*"):
        if blob.is_file() and b"MatMul" in blob.read_bytes():
            blob.write_bytes(b"swapped")
    with pytest.raises(ArtifactCorrupt):
        bench.export(version)


def test_a_graph_that_fails_has_no_code_of_its_own_to_fall_back_to(bench: Bench) -> None:
    (bench.folder / "model.onnx").write_bytes(b"not a model")
    contract = DeclaredGraph(signature=signature(), example=bench.store.put_bytes(dump_npz({"input": EXAMPLE})))
    conversion = Conversion(timeout_s=60, fallback="python")
    with pytest.raises(ExportFailed, match="does not load"):
        export(site(bench.home), bench.version(), contract, conversion, Datasets(), Data(), RecordedRequests())


def test_a_refusal_names_the_command_that_asks_the_row_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"in\u00fct": [1.5, float("nan")], "city": "it's; rm"}
    found = Counterexample(row=3, origin="range", inputs=json.dumps(row), original="1", served="2")
    reasons = [f"not the model: {found}", "no row"]

    def refuses(_: object) -> ExportedGraph:
        raise ExportFailed(reasons.pop(0), do="Look.")

    monkeypatch.setattr(table, "of", lambda _: SimpleNamespace(export=refuses))
    with pytest.raises(ExportFailed) as refused:
        bench.export()
    *_, name, option, given = shlex.split(refused.value.do.partition("shown by: ")[2])
    assert (name, option) == ("digits/1", "--inputs")
    assert str(json.loads(given)) == str(row)
    with pytest.raises(ExportFailed, match=r"no row. Look.$"):
        bench.export()
