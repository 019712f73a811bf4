"""The family of a version and of a record."""

from pathlib import Path
from typing import Any, get_args

import pytest

from shiplift.runtime.base.errors import NotAdmitted
from shiplift.runtime.families import table
from shiplift.runtime.records.kinds.contract import Contract
from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.model import Flavor
from shiplift.runtime.records.proof import ColumnDifference, Proof, RowsAsked, SettingAsked
from shiplift.runtime.spec.document import parse
from tests.unit.examples import exported, inspected, site

_TRANSFORMERS = {"text-classification": "text", "image-classification": "image", "text-generation": "generation"}


@pytest.mark.parametrize(
    ("flavor", "kind"),
    [("onnx", "graph"), ("sklearn", "graph"), ("python_function", "python"), ("shiplift_pipeline", "pipeline")],
)
def test_a_flavor_belongs_to_one_family(flavor: str, kind: str) -> None:
    assert [family.kind for family in table.FAMILIES if family.recognises(inspected(flavor))] == [kind]


@pytest.mark.parametrize(("task", "kind"), _TRANSFORMERS.items())
def test_a_task_of_hugging_face_belongs_to_one_family(task: str, kind: str) -> None:
    version = inspected("transformers", task=task)
    assert [family.kind for family in table.FAMILIES if family.recognises(version)] == [kind]


def test_every_flavor_that_is_admitted_has_a_family() -> None:
    assert all(table.recognised(inspected(flavor)) for flavor in get_args(Flavor))


def test_a_flavor_without_a_family_is_refused() -> None:
    with pytest.raises(NotAdmitted, match="no kind of model has the flavor prophet"):
        table.recognised(inspected("prophet"))


@pytest.mark.parametrize("family", table.FAMILIES, ids=lambda family: family.kind)
def test_a_family_declares_what_is_its_own(family: Any, tmp_path: Path) -> None:
    contract = family.contract(site(tmp_path), parse(""), inspected(requirements=("numpy==2.0",)))
    assert isinstance(contract, Contract)
    assert table.of(contract) is family


def test_every_kind_of_record_has_a_family() -> None:
    kinds = {family.kind for family in table.FAMILIES}
    for union in (Contract, Exported, Package):
        own = {kind for kind, member in union.kinds.items() if member.__module__.startswith("shiplift.")}
        assert own - {"decoder"} == kinds  # which is made for a pipeline, and never released


def test_a_report_says_how_a_model_was_exported() -> None:
    said = table.export_summary(exported())
    assert said == (
        "Converted in a sandbox (network: namespace, files: landlock, calls: none, memory 512 MiB, 30 s), opset 20."
    )
    proof = Proof(
        asked=(RowsAsked(origin="example", rows=2), RowsAsked(origin="zero", rows=9)),
        settings=(SettingAsked(name="alone", rows=11),),
        worst=ColumnDifference(output="y", column=1, difference=1e-6, tolerance=1e-3),
        left_out=("3 rows were late.", "all else"),
    )
    assert table.export_summary(exported(proof=proof)).endswith(
        "opset 20. Proved against the original on these rows: 2 example, 9 zero. What is served answers alike alone "
        "(11). The closest to its tolerance is column 1 of y: 1e-06 off, 0.001 allowed. Left out: 3 rows were late. "
        "all else."
    )
    assert "opset" not in table.export_summary(exported(kind="generation"))
