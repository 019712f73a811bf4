"""The examples run as they are, on a stack of their own or a running one."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import Lab

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
def test_a_cascade_is_as_right_as_its_large_model_which_few_requests_need(lab: Lab, tmp_path: Path) -> None:
    variables = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    done = subprocess.run(
        [sys.executable, EXAMPLES / "cascade" / "run.py"], cwd=tmp_path, capture_output=True, text=True, check=False,
        timeout=900, env=variables | {"SHIPLIFT_HOME": str(lab.home)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    right = {name: float(text) for name, text in re.findall(r"^(\S+): accuracy ([\d.]+),", done.stdout, re.MULTILINE)}
    assert right["digits-cascade"] > right["digits-large"] - 0.02
    (needed,) = re.findall(r"^(\d+)% of the requests needed the large model$", done.stdout, re.MULTILINE)
    assert 0 < int(needed) < 50
