"""What `shiplift init --for` writes runs as it is: it finds the running stack, and its model is promoted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shiplift.pipelines.commands.start import init_files
from tests.integration.conftest import FAST, Lab


@pytest.mark.parametrize("library", [name for name in init_files.STARTERS if name != "pipeline"])
@pytest.mark.slow
def test_a_starter_is_released_as_it_is_written(lab: Lab, tmp_path: Path, library: str) -> None:
    init_files.write(tmp_path, force=False, starter=library)
    spec = FAST + "data: {metric: log_loss}\nquality: {min_score: 0.5}\n"  # of logits or of probabilities
    spec += "admission: {python: sandbox}\n" if library == "pyfunc" else ""
    (tmp_path / "shiplift.yaml").write_text(spec)
    variables = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    done = subprocess.run(
        [sys.executable, "train.py", "--name", f"start-{library}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=variables | {"SHIPLIFT_HOME": str(lab.home)},
    )
    assert done.returncode == 0, done.stderr
    assert f"registered start-{library}/1 in {lab.running.registry_uri}" in done.stdout
    assert f"shiplift status start-{library} --watch" in done.stdout
    report = lab.wait(f"start-{library}", 1, seconds=300)
    assert report.outcome == "promoted", report.reason
    (judged,) = (check for check in report.checks if check.name == "log_loss")
    assert 0 < (judged.measured or 0) < 0.5


@pytest.mark.slow
def test_the_pipeline_starter_is_released_with_its_members(lab: Lab, tmp_path: Path) -> None:
    init_files.write(tmp_path, force=False, starter="pipeline")
    (tmp_path / "shiplift.yaml").write_text(FAST)
    variables = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    variables |= {"SHIPLIFT_HOME": str(lab.home)}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600, env=variables
        )
        assert done.returncode == 0, done.stderr
        return done

    printed = run(sys.executable, "train.py").stdout.splitlines()
    for name in ("digits-small", "digits-large"):
        assert lab.wait(name, 1, seconds=600).outcome == "promoted"
    words = printed[-1].split()
    assert words[:3] == ["shiplift", "pipeline", "release"]
    run(sys.executable, "-m", "shiplift.pipelines.commands.app", *words[1:])
    assert lab.wait("digits-cascade", 1, seconds=600).outcome == "promoted"
