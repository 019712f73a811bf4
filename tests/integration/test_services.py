"""A service from a push to production on one machine: a Triton Python model through the same stages as any model."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shiplift.runtime.base.errors import ServerFailed
from shiplift.runtime.serving.discovery import ServedModel
from tests.integration.conftest import Lab
from tests.integration.test_python_models import SPEC
from tests.unit.pipelines.triggers.test_git_push import Author
from tests.unit.pipelines.triggers.test_local_push import service

pytestmark = pytest.mark.slow
NAME = "adder"


def push(lab: Lab, author: Author, *, code: int = 0) -> Any:
    command = [sys.executable, "-m", "shiplift.pipelines.commands.app", "--home", str(lab.home)]
    done = subprocess.run(
        [*command, "push", str(author.folder), "--json"], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def asked(lab: Lab, total: float) -> Any:
    served: ServedModel = lab.engine.discover(NAME)
    return served.infer({"x": np.full((1, 3), total / 3, np.float32), "unit": np.array([["cm"]], object)})


def test_a_pushed_service_is_released_and_its_next_state_too(lab: Lab, tmp_path: Path) -> None:
    author = Author(tmp_path / "repository")
    author.commit(**service(NAME, **{"shiplift.yaml": SPEC}))
    assert push(lab, author)["registered"] == {NAME: 1}
    report = lab.wait(NAME, 1, seconds=400)
    assert report.exit_code == 0, report.reason
    answer = asked(lab, 3)
    assert answer["total"].tolist() == [[18.0]]
    assert answer["said"].ravel().tolist() in (["in cm"], [b"in cm"])
    with pytest.raises(ServerFailed, match="x is too large"):
        asked(lab, 6000)
    assert push(lab, author)["unchanged"] == [NAME]
    author.commit(**{f"services/{NAME}/helper.py": "FACTOR = 4.0\n"})
    assert push(lab, author)["registered"] == {NAME: 2}
    report = lab.wait(NAME, 2, seconds=400)
    assert report.exit_code == 0, report.reason
    assert asked(lab, 3)["total"].tolist() == [[24.0]]


def test_a_service_whose_spec_does_not_accept_its_code_is_refused(lab: Lab, tmp_path: Path) -> None:
    author = Author(tmp_path / "repository")
    author.commit(**service("shy", **{"shiplift.yaml": "slo: {p99_ms: 1000}\n"}))
    author.commit(**service("bad", **{"service.py": "1/0", "shiplift.yaml": SPEC}))
    assert set(push(lab, author)["registered"]) == {"shy", "bad"}
    report = lab.wait("shy", 1, seconds=120)
    assert report.exit_code != 0
    assert "its author's code, and the spec says `python: refuse`" in report.reason
    report = lab.wait("bad", 1, seconds=400)
    assert report.exit_code != 0
    assert "ZeroDivisionError" in report.reason or "division by zero" in report.reason
