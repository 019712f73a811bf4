"""The rehearsals of a waiting sandbox, whose failures are ignored there and so must show here."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from shiplift.runtime.admission import conversion, scan
from shiplift.runtime.admission import entry as admission
from shiplift.runtime.base.progress import listening
from shiplift.runtime.model import golden
from shiplift.runtime.model.conversion import rehearsal
from shiplift.runtime.precision.ladder import Builder
from shiplift.runtime.records.model import Finding, Scan
from shiplift.runtime.targets import precisions

LATE = """
import importlib, sys
from shiplift.runtime.admission import conversion
conversion.rehearse({flavor!r})
before = set(sys.modules)
conversion.rehearse({flavor!r})
print(sorted(set(sys.modules) - before), "torch" in sys.modules)
"""

PARTS = [
    "loading the original",
    "asking the original",
    "asking the original as mlflow.pyfunc",
    "converting to ONNX",
    "checking the graph's batches",
    "comparing the graph with the original",
]
LATE_ON_ENGINES = """
import importlib, sys
module = importlib.import_module(sys.argv[1])
module._rehearsed()
before = set(sys.modules)
module._rehearsed.__wrapped__()
print(sorted(set(sys.modules) - before), "openvino" in sys.modules)
"""


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    return folder


@pytest.fixture
def forgotten(scratch: Path) -> Path:
    """Nothing has been rehearsed yet."""
    for module in (precisions, golden):
        module._rehearsed.cache_clear()
    return scratch


@pytest.mark.parametrize(
    "flavor",
    [
        *(pytest.param(each, marks=[pytest.mark.slow] * (each == "pytorch")) for each in rehearsal._WRITERS),
        "onnx",
        "",
    ],
)
def test_a_small_model_of_each_flavor_is_converted_and_leaves_nothing(
    flavor: str, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    converted, heard = list[object](), list[str]()

    def convert(**arguments: object) -> None:
        original(**arguments)
        assert (Path(str(arguments["out"])) / "model" / "model.onnx").is_file()
        converted.append(arguments["flavor"])

    original: Any = conversion.convert
    monkeypatch.setattr(conversion, "convert", convert)
    with listening(lambda said, _: heard.append(said)):
        conversion.rehearse(flavor)
    assert converted == ([flavor] if flavor in rehearsal._WRITERS else [])
    assert heard == (PARTS if converted else [])  # the timeline's parts of an export
    assert list(scratch.iterdir()) == []


OPERATORS_ONCE = """
from torch.onnx._internal.exporter._registration import ONNXRegistry
from shiplift.runtime.model.conversion import rehearsal
rehearsal._read_operators_once()
first = ONNXRegistry().from_torchlib(opset_version=18)
print(first is ONNXRegistry().from_torchlib(opset_version=18), first is ONNXRegistry.from_torchlib(opset_version=20))
"""


@pytest.mark.slow
def test_torch_s_operators_are_read_once() -> None:
    ended = subprocess.run([sys.executable, "-c", OPERATORS_ONCE], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "True False"


@pytest.mark.slow
@pytest.mark.parametrize("flavor", ["sklearn", "pytorch"])
def test_after_a_rehearsal_a_conversion_imports_nothing(flavor: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", LATE.format(flavor=flavor)], capture_output=True, text=True, check=True
    )
    assert ended.stdout.splitlines()[-1] == f"[] {flavor == 'pytorch'}"


@pytest.mark.slow
def test_a_rehearsed_scan_asks_for_the_second_opinion_and_leaves_nothing(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opinions: list[list[Finding]] = []
    scans: list[Scan] = []

    def ask(*arguments: Any) -> list[Finding]:
        opinions.append(list(second(*arguments)))
        return opinions[-1]

    def scan_files(*arguments: Any, **settings: Any) -> Scan:
        scans.append(scanned(*arguments, **settings))
        return scans[-1]

    second, scanned = scan._modelaudit, scan.scan_files
    monkeypatch.setattr(scan, "_modelaudit", ask)
    monkeypatch.setattr(admission, "scan_files", scan_files)
    admission.rehearse("sklearn")
    assert opinions == [[]]
    assert [(each.files, each.findings) for each in scans] == [(4, ())]
    assert list(scratch.iterdir()) == []


def test_both_engines_build_and_score_a_small_graph_once_and_leave_nothing(
    forgotten: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: list[tuple[str, str, str]] = []
    original = Builder._scored

    def noted(self: Builder, *given: Any) -> Any:
        own, runs, notes = original(self, *given)
        scored.extend((each.engine, each.precision, each.dropped) for each in own)
        return own, runs, notes

    monkeypatch.setattr(Builder, "_scored", noted)
    precisions.rehearse("pytorch")
    precisions.rehearse("sklearn")
    without_bf16 = [each for each in scored if each[1] != "bf16"]  # not every processor computes in it
    assert without_bf16 == [
        ("onnxruntime", "fp32", ""),
        ("onnxruntime", "int8", ""),
        ("openvino", "fp32", ""),
        ("openvino", "int8", ""),
    ]
    assert list(forgotten.iterdir()) == []


def test_both_engines_answer_with_a_small_graph_once_and_leave_nothing(
    forgotten: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered: list[tuple[dict[str, Any], Any]] = []
    original = golden.answer_golden

    def noted(**given: Any) -> Any:
        answered.append((given, original(**given)))

    monkeypatch.setattr(golden, "answer_golden", noted)
    golden.rehearse("pytorch")
    golden.rehearse("onnx")
    ((given, result),) = answered
    assert [each["engine"] for each in given["models"]] == ["onnxruntime", "openvino"]
    assert result["answered"] == 2
    assert list(forgotten.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("entry", ["shiplift.runtime.targets.precisions", "shiplift.runtime.model.golden"])
def test_after_a_rehearsal_a_release_imports_nothing(entry: str) -> None:
    ended = subprocess.run([sys.executable, "-c", LATE_ON_ENGINES, entry], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "[] True"
