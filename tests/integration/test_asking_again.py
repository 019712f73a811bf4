"""Rows of a release are asked again of its original and of its forms, by the command that a difference names."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mlflow.models import infer_signature

from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.search.repeating import ask
from shiplift.runtime.spec.admitted import Admitted
from tests.huggingface import pipeline
from tests.integration.conftest import Lab
from tests.integration.test_answers import falsify
from tests.integration.test_python_models import CODE, log_python, rows

pytestmark = pytest.mark.slow


def shiplift(lab: Lab, *words: str) -> tuple[int, Any]:
    """The command `shiplift ask`: its exit code, and what it prints as JSON."""
    command = [sys.executable, "-m", "shiplift.pipelines.commands.app", "--home", str(lab.home), "ask", *words]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False, timeout=300)
    return done.returncode, json.loads(done.stdout)


def test_rows_of_a_release_are_asked_again_and_a_form_that_differs_is_told(lab: Lab, tmp_path: Path) -> None:
    version = lab.log_classifier("asked")
    report = lab.wait("asked", version)
    assert report.exit_code == 0, report.reason
    code, again = shiplift(lab, f"asked/{version}", "--row", "0", "--row", "3")
    assert (code, again["judge"]) == (0, "mlflow.pyfunc")
    first, second = again["rows"]
    assert (first["row"], second["row"], first["difference"]) == (0, 3, "")
    assert first["origin"] in ("example", "validation")
    assert json.loads(first["recorded"]).keys() == json.loads(first["among"]).keys()
    labels = [json.loads(first[each]) for each in ("recorded", "original", "served", "among")]
    assert len({str(each.get("label", each.get("output"))) for each in labels}) == 1, labels
    for words, said in (
        (("--row", "100000"), "no row 100000"),
        (("--row", "0", "--form", "onnxruntime-fp8"), "has no form 'onnxruntime-fp8'"),
    ):
        code, told = shiplift(lab, f"asked/{version}", *words)
        assert (code, said in told["what"]) == (64, True), told
    code, told = shiplift(lab, "asked/99", "--row", "0")
    assert code not in (0, 43), told

    history = lab.engine.history(report)
    admitted, exported, package = history.last(Admitted), history.last(Exported), history.package
    assert admitted is not None
    assert exported is not None
    assert package is not None
    assert package.questions is not None
    store = lab.engine.store()
    tree = store.fetch(package.repository, tmp_path / "tree")
    for file in tree.rglob("model.onnx"):
        falsify(file)
    wrong = package.model_copy(update={"repository": store.put_tree(tree)})
    for clients in (1, 4):
        told = ask(lab.site, admitted, exported, wrong, range(8), clients)
        assert not told.same
        assert any("the served form answers" in row.difference for row in told.rows)


def test_a_python_model_is_asked_in_its_own_environment_and_a_model_of_texts_as_mlflow_loads_it(
    lab: Lab, tmp_path: Path
) -> None:
    example, factor = rows(6), tmp_path / "factor.txt"
    factor.write_text("2.5")
    signature = infer_signature(example, example)
    python = log_python(lab, "asked-python", str(CODE), example, artifacts={"factor": str(factor)}, signature=signature)
    text = lab.log(
        "asked-text",
        lambda **options: lab.mlflow.transformers.log_model(pipeline("text-classification"), **options),
    )
    for name, version in (("asked-python", python), ("asked-text", text)):
        report = lab.wait(name, version, seconds=300)
        assert report.exit_code == 0, report.reason
        code, again = shiplift(lab, f"{name}/{version}", "--row", "0", "--row", "1", "--clients", "2")
        assert code == 0, again
        assert again["judge"].startswith("mlflow.pyfunc"), again
        for row in again["rows"]:
            assert not row["original"].startswith("raises"), row
            assert row["difference"] == ""
            assert row["among"]
