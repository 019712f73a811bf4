"""The examples run as they are, on a stack of their own or a running one."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import Lab

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.timeout(1860)  # longer than each example's own limit


def run(example: str, lab: Lab, folder: Path, *, timeout: float) -> str:
    """What an example prints, run on the lab's stack."""
    variables = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    done = subprocess.run(
        [sys.executable, EXAMPLES / example],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        env=variables | {"SHIPLIFT_HOME": str(lab.home)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_cascade_is_as_right_as_its_large_model_which_few_requests_need(lab: Lab, tmp_path: Path) -> None:
    printed = run("cascade/cascade.py", lab, tmp_path, timeout=900)
    right = {name: float(text) for name, text in re.findall(r"^(\S+): accuracy ([\d.]+),", printed, re.MULTILINE)}
    assert right["digits-cascade"] > right["digits-large"] - 0.02
    (needed,) = re.findall(r"^(\d+)% of the requests needed the large model$", printed, re.MULTILINE)
    assert 0 < int(needed) < 50


@pytest.mark.slow
def test_ocr_reads_pages_as_rapidocr_does(lab: Lab, tmp_path: Path) -> None:
    printed = run("ocr/ocr.py", lab, tmp_path, timeout=1800)
    errors = {
        name: float(text) for name, text in re.findall(r"^(\w+): character error rate ([\d.]+),", printed, re.MULTILINE)
    }
    assert errors.keys() == {"shiplift", "flask"}
    assert max(errors.values()) < 0.01
    (differ,) = re.findall(
        r"^\d+ of 24 pages have the same text; ([\d.]+) of its characters differ$", printed, re.MULTILINE
    )
    assert float(differ) < 0.005


@pytest.mark.slow
def test_nine_models_look_at_one_frame_that_is_sent_and_decoded_once(lab: Lab, tmp_path: Path) -> None:
    printed = run("frame/frame.py", lab, tmp_path, timeout=1800)
    (apart,) = re.findall(r"answers to the JPEG differ by (\S+) at most", printed)
    assert float(apart) < 1e-3
    sizes = {
        name: int(size)
        for name, size in re.findall(r"^(.+): \d+ frames/s, .*, (\d+) kB a frame$", printed, re.MULTILINE)
    }
    assert len(sizes) == 4
    assert min(sizes, key=sizes.__getitem__) == "one request, JPEG"
