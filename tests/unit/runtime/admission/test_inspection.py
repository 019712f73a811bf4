"""What the sandbox read of a version's files: when it is asked, and when what it said before is enough."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto, helper

from shiplift.runtime.admission import inspection
from shiplift.runtime.admission.inspection import INSPECT, Inspected, inspect
from shiplift.runtime.base.errors import NotAdmitted
from shiplift.runtime.confinement.workplace import Workplace, workplace
from shiplift.runtime.spec.document import ReleaseSpec, parse
from shiplift.runtime.store.artifacts import ArtifactStore
from tests.unit.examples import save


def inspected_in(home: Path, model: Path, place: Workplace, spec: ReleaseSpec | None = None) -> Inspected:
    store = ArtifactStore((home / "artifacts").as_uri())
    return inspect(model, place, spec or ReleaseSpec(), store, home / "inspections")


def test_an_image_s_example_does_not_hold_the_scan_up_and_is_there_after_it(tmp_path: Path) -> None:
    """As MLflow writes it; the scanner alone would take more than ten minutes."""
    numbers = [[round(0.001 * n, 3) for n in range(224)]] * 224
    text = json.dumps({"inputs": [[numbers] * 3] * 2})
    assert 1 << 20 < len(text) < 10 << 20
    with workplace(INSPECT, tmp_path) as place:
        model = place.folder / "model"
        onnx_folder(model)
        for name in ("input_example.json", "serving_input_example.json"):
            (model / name).write_text(text)
        inspected = inspected_in(tmp_path, model, place)
        assert inspected.scan.findings == ()
        assert inspected.flavor == "onnx"
        assert sorted(file.name for file in model.iterdir()) == [
            "MLmodel", "input_example.json", "model.onnx", "serving_input_example.json",
        ]  # fmt: skip


def onnx_folder(folder: Path) -> Path:
    """An MLflow model whose example is an image in MLflow's JSON, and whose file is never loaded."""
    folder.mkdir()
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3, 224, 224]) for name in "xy"]
    save(
        helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", values[:1], values[1:]), folder / "model.onnx"
    )
    tensor = {"type": "tensor", "name": "x", "tensor-spec": {"dtype": "float64", "shape": [-1, 3, 224, 224]}}
    meta = {
        "flavors": {"onnx": {"data": "model.onnx", "code": None}},
        "signature": {"inputs": json.dumps([tensor]), "outputs": json.dumps([tensor])},
        "saved_input_example_info": {"artifact_path": "input_example.json", "type": "ndarray"},
    }
    (folder / "MLmodel").write_text(json.dumps(meta))
    return folder


def test_an_example_that_is_no_json_is_refused(tmp_path: Path) -> None:
    with workplace(INSPECT, tmp_path) as place:
        model = onnx_folder(place.folder / "model")
        (model / "input_example.json").write_text(json.dumps({"inputs": [[[[0.5] * 224] * 224] * 3]}))
        (model / "serving_input_example.json").write_bytes(b"\x80\x04cos\nsystem\n")
        with pytest.raises(NotAdmitted, match=r"serving_input_example.json: .*os.system"):
            inspected_in(tmp_path, model, place)


EXAMPLE = json.dumps({"inputs": [[[[0.5] * 224] * 224] * 3]})
Register = Callable[..., Inspected]


@pytest.fixture
def register(tmp_path: Path) -> Register:
    """Inspects an ONNX model, after `change` has changed its folder; every call is another registration."""

    def register(spec: str = "", change: Callable[[Path], object] = lambda _: None) -> Inspected:
        with workplace(INSPECT, tmp_path) as place:
            model = onnx_folder(place.folder / "model")
            (model / "input_example.json").write_text(EXAMPLE)
            change(model)
            return inspected_in(tmp_path, model, place, parse(spec))

    return register


def kept(home: Path) -> list[Path]:
    return list((home / "inspections").glob("*.json"))


def test_equal_files_are_scanned_once(register: Register, monkeypatch: pytest.MonkeyPatch) -> None:
    first = register()
    monkeypatch.setattr(inspection, "_asked", lambda *_: pytest.fail("scanned again"))
    assert register() == register("slo: {p99_ms: 9}") == first


@pytest.mark.parametrize(
    "change",
    [
        lambda model: (model / "requirements.txt").write_text("onnx"),
        lambda model: (model / "MLmodel").write_text((model / "MLmodel").read_text() + " "),
        lambda model: (model / "input_example.json").write_text(EXAMPLE.replace("0.5", "0.25")),
    ],
    ids=["another file", "another byte", "an example"],
)
def test_files_that_differ_in_anything_are_scanned(
    register: Register, change: Callable[[Path], object], tmp_path: Path
) -> None:
    register()
    register(change=change)
    assert len(kept(tmp_path)) == 2


@pytest.mark.parametrize(
    "spec", ["admission: {pickle: sandbox}", "admission: {python: sandbox}", "admission: {max_size_mb: 77}"]
)
def test_other_rules_have_the_same_files_scanned(register: Register, spec: str, tmp_path: Path) -> None:
    register()
    register(spec)
    assert len(kept(tmp_path)) == 2


@pytest.mark.parametrize("part", ["package_digest", "_version"])
def test_another_scanner_scans_again(
    register: Register, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register()
    monkeypatch.setattr(inspection, part, lambda *_: "newer")
    register()
    assert len(kept(tmp_path)) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda home: kept(home)[0].write_text("{"),
        lambda home: kept(home)[0].write_text(kept(home)[0].read_text().replace('"scan"', '"scam"')),
        lambda home: [file.write_bytes(b"altered") for file in (home / "artifacts").rglob("*") if file.is_file()],
        lambda home: [file.unlink() for file in (home / "artifacts").rglob("*") if file.is_file()],
    ],
    ids=["no JSON", "no scan", "another example", "no example"],
)
def test_what_can_not_be_read_any_more_is_asked_again(
    register: Register, damage: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = register()
    damage(tmp_path)
    asked: list[Path] = []

    def ask(model: Path, place: Workplace, rules: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        asked.append(model)
        return answer(model, place, rules)

    answer = inspection._asked
    monkeypatch.setattr(inspection, "_asked", ask)
    again = register()
    assert (again.signature, again.example, len(asked)) == (first.signature, first.example, 1)


def test_a_refusal_is_not_kept(register: Register, tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(NotAdmitted, match=r"evil\.py"):
            register(change=lambda model: (model / "evil.py").write_text("import os"))
    assert kept(tmp_path) == []
