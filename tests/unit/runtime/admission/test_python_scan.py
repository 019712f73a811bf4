"""The scan of Python models: it reports their code, and refuses only what MLflow would import or open."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import yaml

from shiplift.runtime.admission.scan import objections, scan_files
from shiplift.runtime.records.model import Scan


class Evil:
    def __reduce__(self) -> Any:
        return eval, ("1 + 1",)


def scanned(folder: Path, *, python: bool, **flavor: Any) -> Scan:
    fields = {"loader_module": "mlflow.pyfunc.model", "code": "code", "model_code_path": "/home/me/model.py"} | flavor
    (folder / "MLmodel").write_text(yaml.safe_dump({"flavors": {"python_function": fields}}))
    (folder / "code").mkdir(exist_ok=True)
    (folder / "code" / "helper.py").write_text("import os\n")
    (folder / "python_model.pkl").write_bytes(pickle.dumps(Evil()))
    examples = folder.parent / f"{folder.name}-examples"
    examples.mkdir(exist_ok=True)
    return scan_files(folder, examples, pickle="refuse", unpacked_mb=16, python=python)


def test_the_code_of_a_python_model_is_told_as_warnings(tmp_path: Path) -> None:
    scan = scanned(tmp_path, python=True)
    assert {finding.file for finding in scan.findings} == {"code/helper.py", "python_model.pkl"}
    assert {finding.severity for finding in scan.findings} == {"warning"}
    assert {finding.file for finding in objections(scanned(tmp_path, python=False))} == {
        "MLmodel",
        "code/helper.py",
        "python_model.pkl",
    }


@pytest.mark.parametrize("flavor", [{"loader_module": "evil"}, {"data": "../../etc/passwd"}])
def test_what_its_mlmodel_file_would_import_or_open_elsewhere_refuses_it(tmp_path: Path, flavor: Any) -> None:
    assert [finding.file for finding in objections(scanned(tmp_path, python=True, **flavor))][:1] == ["MLmodel"]


def test_a_link_in_it_refuses_it(tmp_path: Path) -> None:
    scanned(tmp_path, python=True)
    (tmp_path / "artifacts").symlink_to(os.sep)
    assert objections(scanned(tmp_path, python=True))
