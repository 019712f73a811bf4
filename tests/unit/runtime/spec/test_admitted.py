"""An admitted version: its sections, and how one that 0.1 wrote is read."""

import json
from pathlib import Path
from typing import Any

import pytest

from shiplift.runtime.records.kinds.contract import Contract, DeclaredGraph, DeclaredText
from shiplift.runtime.spec.admitted import Admitted
from shiplift.runtime.spec.document import parse
from tests.unit.examples import artifact, signature

OLD: dict[str, Any] = json.loads((Path(__file__).parents[1] / "records" / "written_by_0_1.json").read_text())


@pytest.mark.parametrize(
    ("flavor", "kind"),
    [
        ("onnx", "graph"),
        ("sklearn", "graph"),
        ("transformers", "text"),
        ("transformers that generates", "generation"),
        ("python_function", "python"),
        ("shiplift_pipeline", "pipeline"),
    ],
)
def test_a_contract_of_0_1_is_read_by_its_version_s_flavor(flavor: str, kind: str) -> None:
    old = json.loads(admitted(DeclaredGraph(signature=signature(), example=artifact())).model_dump_json())
    old["contract"] = OLD["contracts"][flavor]
    old["model_version"]["flavor"] = flavor.split(maxsplit=1)[0]
    contract = Admitted.model_validate_json(json.dumps(old)).contract
    assert contract.kind == kind
    assert contract.notes == ("a note",)
    if isinstance(contract, DeclaredGraph):
        assert contract.tabular == (flavor == "sklearn")


def test_an_admitted_version_keeps_its_contract_s_kind() -> None:
    version = admitted(DeclaredText(signature=signature(), example=artifact()))
    assert Admitted.model_validate_json(version.model_dump_json()) == version


def test_the_groups_that_stages_take_hold_its_sections() -> None:
    version = admitted(DeclaredGraph(signature=signature(), example=artifact()))
    for group in (version.requirements, version.acceptance, version.serving_space):
        for name in set(type(group).model_fields) - {"shadow"}:  # a part of a section
            assert getattr(group, name) is getattr(version, name)


def admitted(contract: Contract) -> Admitted:
    spec = parse("")
    version = {"name": "digits", "version": 1, "digest": "d", "flavor": "onnx", "files": artifact(kind="tree")}
    fields = {
        "conversion": spec.export,
        "data": spec.data,
        "quantization": spec.quantization,
        "quality": spec.quality,
        "search_space": spec.search,
        "load": spec.load,
        "slo": spec.slo,
        "serving": spec.serving,
        "rollout": spec.rollout,
        "latency_target": {},
        "datasets": {},
        "wanted": {"targets": spec.targets},
        "scan": {"scanner": "s", "files": 1},
    }
    return Admitted.model_validate(fields | {"model_version": version, "contract": contract})
