"""What the sandbox reads from a version's files: when it runs, and when its earlier answer is enough."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast
from unittest.mock import Mock

import pytest
from onnx import TensorProto, helper

from shiplift.runtime.admission import inspection
from shiplift.runtime.admission.inspection import INSPECT, InspectedVersion, inspect
from shiplift.runtime.base.errors import NotAdmitted
from shiplift.runtime.confinement.workplace import Workplace, workplace
from shiplift.runtime.spec.document import ReleaseSpec, parse
from shiplift.runtime.store.artifacts import ArtifactStore
from tests.unit.examples import save
from tests.unit.unconfined import unconfined


def inspected_in(home: Path, model: Path, place: Workplace, spec: ReleaseSpec | None = None) -> InspectedVersion:
    store = ArtifactStore((home / "artifacts").as_uri())
    return inspect(model, place, spec or ReleaseSpec(), store, home / "inspections")


EXAMPLE = json.dumps({"inputs": [[[[0.5] * 224] * 224] * 3]})
Answer = tuple[dict[str, Any], bytes]


@dataclass(frozen=True, kw_only=True)
class Scanned:
    """A scan by the real sandbox: what was made of it, what the sandbox said, and the model's files after it."""

    inspected: InspectedVersion
    answer: Answer
    files: list[str]


@pytest.fixture(scope="module")
def scanned(tmp_path_factory: pytest.TempPathFactory) -> Scanned:
    """A model whose example is an image as MLflow writes it: the scanner alone would take more than ten minutes."""
    home = tmp_path_factory.mktemp("scanned")
    numbers = [[round(0.001 * n, 3) for n in range(224)]] * 224
    text = json.dumps({"inputs": [[numbers] * 3] * 2})
    assert 1 << 20 < len(text) < 10 << 20
    answers: list[Answer] = []

    def ask(*arguments: Any) -> Answer:
        answers.append(asked(*arguments))
        return answers[-1]

    asked = inspection._asked
    with pytest.MonkeyPatch.context() as patch, workplace(INSPECT, home) as place:
        patch.setattr(inspection, "_asked", ask)
        model = onnx_folder(place.folder / "model")
        for name in ("input_example.json", "serving_input_example.json"):
            (model / name).write_text(text)
        inspected = inspected_in(home, model, place)
        return Scanned(inspected=inspected, answer=answers[0], files=sorted(file.name for file in model.iterdir()))


@pytest.mark.slow
def test_an_image_s_example_does_not_hold_the_scan_up_and_is_there_after_it(scanned: Scanned) -> None:
    assert scanned.inspected.scan.findings == ()
    assert scanned.inspected.flavor == "onnx"
    assert scanned.files == ["MLmodel", "input_example.json", "model.onnx", "serving_input_example.json"]


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
    with unconfined(INSPECT, tmp_path) as place:
        model = onnx_folder(place.folder / "model")
        (model / "input_example.json").write_text(json.dumps({"inputs": [[[[0.5] * 224] * 224] * 3]}))
        (model / "serving_input_example.json").write_bytes(b"\x80\x04cos\nsystem\n")
        with pytest.raises(NotAdmitted, match=r"serving_input_example.json: .*os.system"):
            inspected_in(tmp_path, model, cast("Workplace", place))


# --- when it is asked: a sandbox that says what the real one said ---


class Registry:
    """Inspects an ONNX model, after `change` has changed its folder; every call is another registration."""

    def __init__(self, home: Path, answer: Answer) -> None:
        self.home, self.answer, self.asked = home, answer, 0

    def register(self, spec: str = "", change: Callable[[Path], object] = lambda _: None) -> InspectedVersion:
        with TemporaryDirectory(dir=self.home) as folder:
            model = onnx_folder(Path(folder) / "model")
            (model / "input_example.json").write_text(EXAMPLE)
            change(model)
            return inspected_in(self.home, model, Mock(spec=Workplace), parse(spec))

    def ask(self, *_: object) -> Answer:
        self.asked += 1
        return self.answer

    @property
    def kept(self) -> list[Path]:
        return list((self.home / "inspections").glob("*.json"))


@pytest.fixture
def registry(tmp_path: Path, scanned: Scanned, monkeypatch: pytest.MonkeyPatch) -> Registry:
    registry = Registry(tmp_path, scanned.answer)
    monkeypatch.setattr(inspection, "_asked", registry.ask)
    return registry


def test_equal_files_are_scanned_once(registry: Registry) -> None:
    first = registry.register()
    assert registry.register() == registry.register("slo: {p99_ms: 9}") == first
    assert registry.asked == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda model: (model / "requirements.txt").write_text("onnx"),
        lambda model: (model / "MLmodel").write_text((model / "MLmodel").read_text() + " "),
        lambda model: (model / "input_example.json").write_text(EXAMPLE.replace("0.5", "0.25")),
    ],
    ids=["another file", "another byte", "an example"],
)
def test_files_that_differ_in_anything_are_scanned(registry: Registry, change: Callable[[Path], object]) -> None:
    registry.register()
    registry.register(change=change)
    assert registry.asked == len(registry.kept) == 2


@pytest.mark.parametrize(
    "spec", ["admission: {pickle: sandbox}", "admission: {python: sandbox}", "admission: {max_size_mb: 77}"]
)
def test_other_rules_have_the_same_files_scanned(registry: Registry, spec: str) -> None:
    registry.register()
    registry.register(spec)
    assert registry.asked == len(registry.kept) == 2


@pytest.mark.parametrize("part", ["package_digest", "_version"])
def test_another_scanner_scans_again(registry: Registry, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.register()
    monkeypatch.setattr(inspection, part, lambda *_: "newer")
    registry.register()
    assert registry.asked == len(registry.kept) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda it: it.kept[0].write_text("{"),
        lambda it: it.kept[0].write_text(it.kept[0].read_text().replace('"scan"', '"scam"')),
        lambda it: [file.write_bytes(b"altered") for file in (it.home / "artifacts").rglob("*") if file.is_file()],
        lambda it: [file.unlink() for file in (it.home / "artifacts").rglob("*") if file.is_file()],
    ],
    ids=["no JSON", "no scan", "another example", "no example"],
)
def test_what_can_not_be_read_any_more_is_asked_again(registry: Registry, damage: Callable[[Registry], object]) -> None:
    first = registry.register()
    damage(registry)
    again = registry.register()
    assert (again.signature, again.example, registry.asked) == (first.signature, first.example, 2)


def test_a_refusal_is_not_kept(registry: Registry) -> None:
    said, example = registry.answer
    evil = {"severity": "critical", "file": "evil.py", "what": "it is code", "names": ""}
    registry.answer = said | {"scan": said["scan"] | {"findings": [evil]}}, example
    for _ in range(2):
        with pytest.raises(NotAdmitted, match=r"evil\.py"):
            registry.register()
    assert (registry.asked, registry.kept) == (2, [])
