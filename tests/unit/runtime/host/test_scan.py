import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from shiplift.runtime.host import sandbox
from shiplift.runtime.host.scan import objections, refusal, scan_files
from shiplift.runtime.records.model import Finding, Scan
from tests.unit.examples import perceptron


def scan_of(*findings: Finding) -> Scan:
    return Scan(scanner="modelaudit 0", files=1, findings=findings)


def finding(severity: Any = "critical", names: str = "", file: str = "model.pkl") -> Finding:
    return Finding(severity=severity, file=file, what="it calls something", names=names)


@pytest.mark.parametrize("pickle_", ["refuse", "sandbox"])
@pytest.mark.parametrize("severity", ["warning", "info"])
def test_what_is_not_critical_keeps_nobody_out(pickle_: Any, severity: str) -> None:
    assert objections(scan_of(finding(severity, "os.system")), pickle=pickle_) == []


@pytest.mark.parametrize(
    ("names", "sandboxed"),
    [
        ("torch._utils._rebuild_tensor_v2", True),
        ("__main__.Net", True),
        ("sklearn.linear_model._base.LinearRegression", True),
        ("numpy.core.multiarray._reconstruct", True),
        ("os.system", False),
        ("posix.system", False),
        ("builtins.eval", False),
        ("__builtin__.exec", False),
        ("subprocess.Popen", False),
        ("torchx.evil", False),
        ("", False),
    ],
)
def test_code_of_known_frameworks_is_accepted_only_where_the_spec_says_so(names: str, sandboxed: bool) -> None:
    critical = finding(names=names)
    assert objections(scan_of(critical), pickle="refuse") == [critical]
    assert objections(scan_of(critical), pickle="sandbox") == ([] if sandboxed else [critical])


def test_one_objection_among_accepted_findings_is_enough() -> None:
    good, bad = finding(names="torch.nn.Linear"), finding(names="os.system")
    assert objections(scan_of(good, bad, good), pickle="sandbox") == [bad]


def test_a_refusal_names_the_first_objections_and_how_to_log_a_model_without_code() -> None:
    error = refusal([finding(file=f"{n}.pkl") for n in range(5)])
    assert error.what.startswith(
        "the scan found code or data that must not be loaded: 0.pkl: it calls something; 1.pkl:"
    )
    assert error.what.endswith("(and 2 more)")
    assert "pt2" in error.do
    assert "pickle: sandbox" in error.do


# --- the scanner itself, on real files ---


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in the sandbox: the scanner tells nobody what it scans."""
    for name, value in sandbox._environment(tmp_path).items():
        if name not in ("PATH", "LANG"):
            monkeypatch.setenv(name, value)


class Evil:
    def __reduce__(self) -> Any:
        return eval, ("1 + 1",)


def scanned(folder: Path) -> dict[str, list[str]]:
    """Critical findings by file."""
    scan = Scan.model_validate(scan_files(str(folder)))
    assert scan.files == sum(1 for path in folder.rglob("*") if path.is_file())
    by: dict[str, list[str]] = {}
    for objection in objections(scan, pickle="refuse"):
        by.setdefault(objection.file, []).append(objection.what)
    return by


def test_a_harmless_onnx_model_is_let_in(tmp_path: Path) -> None:
    perceptron(tmp_path / "model.onnx")
    (tmp_path / "MLmodel").write_text("flavors: {}\n")
    assert scanned(tmp_path) == {}


def test_a_pickle_that_calls_something_is_found(tmp_path: Path) -> None:
    perceptron(tmp_path / "model.onnx")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "model.pkl").write_bytes(pickle.dumps(Evil()))
    assert any("data/model.pkl" in file for file in scanned(tmp_path))


def with_external_data(folder: Path, location: str) -> None:
    weights = numpy_helper.from_array(np.ones((4, 3), np.float32), "w")
    onnx.external_data_helper.set_external_data(weights, location)
    weights.ClearField("raw_data")
    weights.data_location = TensorProto.EXTERNAL
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])],
        [weights],
    )
    (folder / "model.onnx").write_bytes(helper.make_model(graph).SerializeToString())


@pytest.mark.parametrize(
    ("location", "problem"),
    [
        ("../../etc/passwd", "outside the model"),
        ("/etc/passwd", "outside the model"),
        ("..\\secret", "outside the model"),
        ("gone.bin", "are missing"),
        ("link.bin", "are missing"),
    ],
)
def test_an_onnx_model_that_reaches_outside_its_folder_is_refused(tmp_path: Path, location: str, problem: str) -> None:
    (tmp_path / "link.bin").symlink_to("/etc/passwd")
    with_external_data(tmp_path, location)
    assert any(problem in what for what in scanned(tmp_path)["model.onnx"])


@pytest.mark.parametrize("size", [0, 10, 200])
def test_a_truncated_onnx_model_is_refused(tmp_path: Path, size: int) -> None:
    whole = perceptron(tmp_path / "model.onnx").read_bytes()
    (tmp_path / "model.onnx").write_bytes(whole[:size])
    assert any("truncated" in what for what in scanned(tmp_path)["model.onnx"])
