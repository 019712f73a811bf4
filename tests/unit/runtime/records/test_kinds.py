"""Records of several kinds: unions whose members carry only their own fields, and what 0.1 wrote of them.

`written_by_0_1.json` was made by the last version that had one record for all kinds.
"""

import json
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import ValidationError

from shiplift.runtime.records.base import Record, identity
from shiplift.runtime.records.kinds.contract import Contract
from shiplift.runtime.records.kinds.exported import Exported, ExportedGraph, ExportedText
from shiplift.runtime.records.kinds.package import Package, PipelinePackage, TextPackage
from shiplift.runtime.records.kinds.union import Kinded
from shiplift.runtime.records.promotion import Champion, Promotion
from shiplift.runtime.serving.machine.served import ServedPackage
from tests.old_records import package_of_0_1
from tests.unit.examples import artifact, exported

OLD: dict[str, Any] = json.loads(Path(__file__).with_name("written_by_0_1.json").read_text())


class Shape(Kinded):
    name: str = ""


class Circle(Shape):
    kind: Literal["circle"] = "circle"
    radius: int


class Square(Shape):
    kind: Literal["square"] = "square"


class Drawing(Record):
    shapes: tuple[Shape, ...]


def own_fields(union: type[Kinded]) -> dict[str, set[str]]:
    """The fields that each of Shiplift's own members adds."""
    own = {kind: member for kind, member in union.kinds.items() if member.__module__.startswith("shiplift.")}
    return {kind: set(member.model_fields) - set(union.model_fields) for kind, member in own.items()}


def test_a_member_goes_where_its_union_goes() -> None:
    assert (Circle.parameter(), Shape.parameter()) == ("shape", "shape")
    assert {exported(kind=kind).parameter() for kind in ("graph", "generation")} == {Exported.parameter()}


def test_a_union_is_read_as_the_member_that_its_kind_names() -> None:
    drawing = Drawing.model_validate_json('{"shapes": [{"kind": "circle", "radius": 2}, {"kind": "square"}]}')
    assert drawing.shapes == (Circle(radius=2), Square())
    assert Drawing.model_validate_json(drawing.model_dump_json()) == drawing
    assert identity(drawing) == {
        "shapes": [{"kind": "circle", "name": "", "radius": 2}, {"kind": "square", "name": ""}]
    }


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ({"kind": "square", "radius": 2}, "radius"),
        ({"kind": "line"}, "'line' is not a kind of Shape: circle, square"),
        ({"name": "a"}, "a Shape needs a `kind`"),
        ("square", "read from a mapping"),
    ],
)
def test_what_no_member_can_be_is_refused(written: Any, why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Shape.model_validate(written)


def test_a_union_itself_is_no_record() -> None:
    with pytest.raises(TypeError, match="Shape has kinds: make a Circle or a Square"):
        Shape(kind="circle")


def test_a_member_is_no_other_member() -> None:
    with pytest.raises(ValidationError, match="Input should be a valid dictionary or instance of Circle"):
        Circle.model_validate(Square())


def test_a_field_exists_only_where_it_has_meaning() -> None:
    assert own_fields(Exported) == {
        "graph": {"asked", "form", "opset", "proof", "torchscript", "trees"},
        "text": {"opset", "front"},
        "image": {"opset", "front"},
        "python": {"asked", "proof", "python"},
        "generation": set(),
        "adopted": set(),
        "pipeline": set(),
    }
    with pytest.raises(ValidationError, match="parity"):
        exported(kind="pipeline", isolation=None)


@pytest.mark.parametrize(("kind", "old"), OLD["exported"].items())
def test_an_export_of_0_1_is_read_as_its_kind(kind: str, old: dict[str, Any]) -> None:
    read = Exported.model_validate(old)
    assert read.kind == kind
    assert Exported.model_validate_json(json.dumps(old)) == read
    assert Exported.model_validate_json(read.model_dump_json()) == read
    written = json.loads(read.model_dump_json())
    written |= {"text": written.pop("front")} if "front" in written else {}
    assert {name: written[name] for name in written.keys() & old.keys()}.items() <= old.items()


def test_the_fields_of_an_export_of_0_1_are_kept() -> None:
    graph, text = (Exported.model_validate(OLD["exported"][kind]) for kind in ("graph", "text"))
    assert isinstance(graph, ExportedGraph)
    assert isinstance(text, ExportedText)
    assert (graph.opset, graph.torchscript) == (20, artifact("d", kind="tree", size_bytes=10))
    assert text.front.signature.outputs[0].name == "label"


def test_an_export_of_0_1_that_is_of_two_kinds_is_refused() -> None:
    with pytest.raises(ValidationError, match="torchscript"):
        Exported.model_validate(OLD["exported"]["text"] | {"torchscript": artifact().model_dump()})


def test_a_contract_of_0_1_by_itself_is_not_guessed() -> None:
    with pytest.raises(ValidationError, match="a Contract needs a `kind`"):
        Contract.model_validate(OLD["contracts"]["onnx"])


def _kind_of(name: str) -> str:
    """The kind of a package by its name in the file; its states, buckets and tensors are what the rest says."""
    return "graph" if name == "text without tensors or buckets" else name.split(maxsplit=1)[0]


@pytest.mark.parametrize(("name", "old"), OLD["packages"].items())
def test_a_package_of_0_1_is_read_as_its_kind_with_all_that_it_says(name: str, old: dict[str, Any]) -> None:
    read = Package.model_validate(old)
    assert read.kind == _kind_of(name)
    written = json.loads(read.model_dump_json())
    assert {field: value for field, value in old.items() if value and field not in written} == {}
    assert {field: written[field] for field in written.keys() & old.keys()}.items() <= old.items()
    assert Package.model_validate_json(read.model_dump_json()) == read
    assert package_of_0_1(read) == old  # what tests of upgrades put in its place


@pytest.mark.parametrize("name", OLD["packages"])
def test_a_revision_s_package_of_0_1_is_the_same_one(name: str) -> None:
    """A `TritonRevision` has it without what is null."""
    assert Package.model_validate(OLD["revision_packages"][name]) == Package.model_validate(OLD["packages"][name])


@pytest.mark.parametrize("name", OLD["packages"])
def test_whoever_serves_a_package_of_0_1_finds_what_it_needs(name: str) -> None:
    old, read = OLD["packages"][name], Package.model_validate(OLD["packages"][name])
    environment, tensors = read.python_environment, read.graph_tensors
    assert (environment.model_dump(mode="json") if environment else None) == old["environment"]
    assert (tensors.model_dump(mode="json") if tensors else None) == old["tensors"]
    assert (read.stateful, list(read.member_models)) == (old["sequences"], old["companions"])
    assert read.endings == (("", "--tensors") if old["tensors"] else ("",))
    assert read.versions == [*(each["version"] for each in old["earlier"]["versions"]), 3]
    if isinstance(read, PipelinePackage):
        assert [member.model_dump(mode="json") for member in read.members] == old["members"]


@pytest.mark.parametrize("union", [Contract, Exported, Package])
@pytest.mark.parametrize("other", [{}, {"signature": 1}, {"text": 1}, {"padding": "a", "signature": {}}, {"kind": []}])
def test_what_is_no_such_record_is_refused_as_any_other_record_would(union: type[Kinded], other: Any) -> None:
    with pytest.raises(ValidationError):
        union.model_validate(other)


def test_what_production_keeps_of_0_1_is_read() -> None:
    promotion = Promotion.model_validate_json(json.dumps(OLD["promotion"]))
    assert [promotion.package.kind, *(other.package.kind for other in promotion.others)] == ["graph", "python"]
    assert promotion.package.needs.rate_limiter
    assert Promotion.model_validate_json(promotion.model_dump_json()) == promotion
    champion = Champion.model_validate_json(json.dumps(OLD["champion"]))
    assert isinstance(champion.package, TextPackage)
    pipeline = ServedPackage.model_validate_json(
        json.dumps({"package": OLD["packages"]["pipeline"], "former": ["old-1"]})
    )
    assert pipeline.kept == ("old-1", "find-1a2b", "read-1a2b")


def test_a_package_of_0_1_that_is_of_two_kinds_is_refused() -> None:
    with pytest.raises(ValidationError, match="tensors"):
        Package.model_validate(OLD["packages"]["text"] | {"companions": ["a"], "environment": None} | {"members": []})


def test_a_package_has_no_field_of_another_kind() -> None:
    assert own_fields(Package) == {
        "graph": {"sequences", "guards"},
        "text": {"tensors"},
        "image": {"tensors", "jpegs"},
        "python": {"environment"},
        "generation": set(),
        "pipeline": {"environment", "companions", "members"},
        "adopted": {"batches", "companions"},
        "decoder": set(),
    }
