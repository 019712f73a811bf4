"""A new kind of model is a folder (`tests/toy`) and a line in the table: every step up to the package serves it."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from shiplift.pipelines.engines.local import runner
from shiplift.pipelines.graph import Pipeline, Stage
from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.composition.incumbents import Incumbents, Members
from shiplift.runtime.families import table
from shiplift.runtime.model.tensors import dump_npz, load_npz
from shiplift.runtime.records.kinds.contract import Contract
from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.model import Datasets, ModelVersion, RecordedRequests
from shiplift.runtime.records.promotion import Champion
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.records.verdict import Packages
from shiplift.runtime.serving.triton.repository import GOLDEN
from shiplift.runtime.spec.document import parse
from shiplift.runtime.spec.groups import Acceptance, ServingSpace
from shiplift.runtime.spec.measurement import Load, ScoreTarget
from shiplift.runtime.spec.model import Conversion, Data, Quantization
from shiplift.runtime.spec.target import Target
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.steps.export import export
from shiplift.steps.package import package
from shiplift.steps.quantize import quantize
from tests.toy.family import ExportedToy, ToyFamily, ToyPackage
from tests.unit.examples import inspected, site, tensor

SIGNATURE = Signature(inputs=(tensor("toy", -1, 4),), outputs=(tensor("double", -1, 4),))
EXAMPLE = np.arange(12, dtype=np.float32).reshape(3, 4)
STEPS = Pipeline(
    "toys",
    inputs=(
        Site,
        Target,
        ModelVersion,
        Contract,
        Conversion,
        Datasets,
        Data,
        RecordedRequests,
        Quantization,
        Acceptance,
        ServingSpace,
        Incumbents,
    ),
    stages=(Stage(export), Stage(quantize), Stage(package)),
)


class Cache:
    """Keeps records as JSON, as the ledger does."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def get(self, key: str, stage: str, kind: Any) -> Any:
        return kind.model_validate_json(self.texts[key]) if key in self.texts else None

    def put(self, key: str, stage: str, record: Any) -> None:
        self.texts[key] = record.model_dump_json()

    def explain(self, error: Any) -> Any:
        return error


@pytest.fixture
def family(monkeypatch: pytest.MonkeyPatch) -> ToyFamily:
    added = ToyFamily()
    monkeypatch.setattr(table, "FAMILIES", [added, *table.FAMILIES])
    return added


def doubling(folder: Path) -> None:
    folder.mkdir()
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in ("toy", "double")]
    graph = helper.make_graph([helper.make_node("Add", ["toy", "toy"], ["double"])], "double", ends[:1], ends[1:])
    onnx.save(
        helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)]), folder / "model.onnx"
    )
    (folder / "MLmodel").write_text("flavors: {onnx: {data: model.onnx}}\n")


def test_a_toy_is_recognised_before_a_graph(family: ToyFamily, tmp_path: Path) -> None:
    toy = inspected(signature=SIGNATURE)
    assert table.recognised(toy) is family
    assert table.recognised(inspected()).kind == "graph"
    with pytest.raises(SpecInvalid, match="a toy has no lengths"):
        family.check(site(tmp_path), parse("serving: {lengths: {pad: {toy: 0}}}"), toy)


def test_a_toy_goes_through_every_step_and_again_from_the_ledger(family: ToyFamily, tmp_path: Path) -> None:
    here = site(tmp_path)
    store = ArtifactStore(here.artifacts_uri)
    doubling(tmp_path / "logged")
    files = store.put_tree(tmp_path / "logged")
    version = ModelVersion(name="toy", version=1, digest=files.sha256, flavor="onnx", files=files)
    spec = parse("")
    toy = inspected(signature=SIGNATURE, example=store.put_bytes(dump_npz({"toy": EXAMPLE})))
    contract = family.contract(here, spec, toy)
    given = (
        here,
        Target(),
        version,
        contract,
        spec.export,
        Datasets(),
        spec.data,
        RecordedRequests(),
        spec.quantization,
        Acceptance(
            datasets=Datasets(),
            data=spec.data,
            quality=spec.quality,
            score_target=ScoreTarget(),
            quantization=spec.quantization,
        ),
        ServingSpace(serving=spec.serving, search_space=spec.search),
        Incumbents(champion=Champion(), members=Members()),
    )
    cache = Cache()
    ending, known = runner.run(STEPS, *given, release="toy-1", cache=cache)
    assert ending.failure is None
    again, recalled = runner.run(STEPS, *given, release="toy-1", cache=cache)
    assert [stage.cached for stage in again.stages] == [True, True, True]
    assert recalled["packages"] == known["packages"]
    assert isinstance(known[Exported.parameter()], ExportedToy)
    assert table.export_summary(known[Exported.parameter()]).endswith("under the motto play.")
    (made,) = known[Packages.parameter()].packages
    assert isinstance(made, ToyPackage)
    assert Package.model_validate_json(made.model_dump_json()) == made
    tree = store.fetch(made.repository, tmp_path / "tree")
    golden = load_npz(tree / GOLDEN)
    np.testing.assert_array_equal(golden["output/double"], 2 * golden["input/toy"])
    assert (tree / "motto.txt").read_text() == made.motto
    assert len(table.requests(made, golden, Load()).samples) > 1
