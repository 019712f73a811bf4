"""The scan of Python models: it reports their code, and refuses only what MLflow would import or open."""

import json
import os
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from shiplift.runtime.admission.entry import inspect
from shiplift.runtime.admission.scan import objections, scan_files
from shiplift.runtime.records.model import Scan


class Evil:
    def __reduce__(self) -> Any:
        return eval, ("1 + 1",)


def scanned(folder: Path, *, python: bool, **flavor: Any) -> Scan:
    fields = {"loader_module": "mlflow.pyfunc.model", "code": "code", "model_code_path": "/home/me/model.py"} | flavor
    (folder / "code").mkdir(exist_ok=True, parents=True)
    (folder / "MLmodel").write_text(yaml.safe_dump({"flavors": {"python_function": fields}}))
    (folder / "code" / "helper.py").write_text("import os\n")
    (folder / "python_model.pkl").write_bytes(pickle.dumps(Evil()))
    examples = folder.parent / f"{folder.name}-examples"
    examples.mkdir(exist_ok=True)
    return scan_files(folder, examples, pickle="refuse", unpacked_mb=16, python=python)


def inspected(folder: Path, python: Any) -> dict[str, Any]:
    """What the sandbox says about a model under this `admission.python`, if the spec refuses pickles."""
    (examples := folder.parent / "examples").mkdir(exist_ok=True)
    return inspect(
        folder=str(folder),
        examples=str(examples),
        out=str(folder.parent),
        states=None,
        own_library=True,
        python=python,
        pickle="refuse",
        unpacked_mb=16,
    )


def test_the_code_of_a_python_model_is_told_as_warnings(tmp_path: Path) -> None:
    scan = scanned(tmp_path, python=True)
    assert {finding.file for finding in scan.findings} == {"code/helper.py", "python_model.pkl"}
    assert {finding.severity for finding in scan.findings} == {"warning"}
    assert {finding.file for finding in objections(scanned(tmp_path, python=False))} == {
        "MLmodel",
        "code/helper.py",
        "python_model.pkl",
    }


def test_its_mlmodel_file_may_import_any_flavor_and_open_nothing_elsewhere(tmp_path: Path) -> None:
    assert not objections(scanned(tmp_path, python=True, loader_module="a_flavor_of_our_own"))
    refused = objections(scanned(tmp_path, python=True, data="../../etc/passwd"))
    assert [finding.file for finding in refused] == ["MLmodel"]


def test_a_model_of_a_known_flavor_with_code_is_a_python_model_if_the_spec_accepts_code(tmp_path: Path) -> None:
    scanned(model := tmp_path / "model", python=True, loader_module="mlflow.sklearn")
    meta = yaml.safe_load((model / "MLmodel").read_text())
    meta["flavors"] |= {"sklearn": {"pickled_model": "python_model.pkl"}}
    column = json.dumps([{"type": "double", "name": "x"}])
    meta |= {"signature": {"inputs": column, "outputs": column}, "mlflow_version": "3.17.2"}
    (model / "MLmodel").write_text(yaml.safe_dump(meta))
    (model / "requirements.txt").write_text("numpy\n")
    for python, flavor in (("refuse", "sklearn"), ("sandbox", "python_function")):
        seen = inspected(model, python)
        assert seen["flavor"] == flavor
        assert bool(objections(Scan.model_validate(seen["scan"]))) == (python == "refuse")
        assert any("its author's code (code/helper.py" in note for note in seen["notes"]) == (python == "sandbox")


@pytest.mark.slow
def test_the_spec_s_word_on_pickles_makes_no_python_model(tmp_path: Path) -> None:
    (model := tmp_path / "model").mkdir()
    (model / "model.pkl").write_bytes(pickle.dumps(Counter("abc")))
    meta: dict[str, Any] = {"flavors": {"sklearn": {}, "python_function": {"loader_module": "mlflow.sklearn"}}}
    column = json.dumps([{"type": "double", "name": "x"}])
    meta |= {"signature": {"inputs": column, "outputs": column}}
    (model / "MLmodel").write_text(yaml.safe_dump(meta))
    seen = inspected(model, "sandbox")
    assert seen["flavor"] == "sklearn"
    assert "pickle: refuse" in objections(Scan.model_validate(seen["scan"]))[0].what


def test_a_link_in_it_refuses_it(tmp_path: Path) -> None:
    scanned(tmp_path, python=True)
    (tmp_path / "artifacts").symlink_to(os.sep)
    assert objections(scanned(tmp_path, python=True))
