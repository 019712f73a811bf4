"""A Triton repository becomes champions as it is: the tutorial's own commands, from the folder to an answer."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from shiplift.runtime.serving.discovery import ServedModel
from tests import triton_repository
from tests.integration.conftest import FAST, Lab

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[2] / "docs/tutorials/adopt.md"


def adopt(lab: Lab, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shiplift.pipelines.commands.app", "--home", str(lab.home), "adopt", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=400)


def test_the_tutorials_repository_serves_as_it_did_and_is_adopted_once(lab: Lab, tmp_path: Path) -> None:
    script = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert script
    subprocess.run([sys.executable, "-c", script[1]], cwd=tmp_path, check=True, timeout=120)
    (tmp_path / "shiplift.yaml").write_text(FAST)
    done = adopt(lab, tmp_path, "models", "--spec", "shiplift.yaml", "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    (made,) = json.loads(done.stdout)["models"]
    assert (made["model"], made["new"], made["outcome"]) == ("scaled", True, "promoted")
    served: ServedModel = lab.engine.discover("scaled")
    np.testing.assert_allclose(served.infer({"x": np.ones((2, 4), np.float32)})["y"], np.full((2, 3), 4.0))
    again = json.loads(adopt(lab, tmp_path, "models", "--spec", "shiplift.yaml", "--json").stdout)["models"][0]
    assert (again["version"], again["new"]) == (made["version"], False)


def test_an_ensemble_is_adopted_with_its_python_in_a_process_of_its_own(lab: Lab, tmp_path: Path) -> None:
    triton_repository.write(tmp_path / "models")
    (tmp_path / "fast.yaml").write_text(FAST)
    done = adopt(lab, tmp_path, "models", "--model", "both", "--spec", "fast.yaml", "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    served: ServedModel = lab.engine.discover("both")
    np.testing.assert_allclose(served.infer({"x": np.ones((2, 4), np.float32)})["half"], np.full((2, 3), 4.0))


def test_a_repository_with_a_mistake_registers_nothing(lab: Lab, tmp_path: Path) -> None:
    triton_repository.write(tmp_path / "models")
    (tmp_path / "models/plain/labels.txt").unlink()
    done = adopt(lab, tmp_path, "models")
    assert done.returncode == 30
    assert "plain/config.pbtxt:5: the file 'labels.txt' is not in the model's folder" in done.stderr
    assert not lab.engine.tagged("plain", "shiplift.adopted", "")
