"""`shiplift calibrate` measures this machine for real, keeps what it measured, and a search finds it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from shiplift.runtime.records.calibration import Calibration
from shiplift.runtime.records.site import Machine, Site
from shiplift.runtime.search.calibration.keeping import known, this_hardware
from shiplift.runtime.search.expectations import expectations_of
from tests.unit.examples import config, package

COMMAND = Path(sys.executable).with_name("shiplift")


def calibrate(home: Path, *options: str) -> dict[str, Any]:
    """The result of the command."""
    done = subprocess.run(
        [COMMAND, "--home", home, "calibrate", "--json", *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_a_machine_is_calibrated_once_and_its_searches_know(tmp_path: Path) -> None:
    home = tmp_path / "home"
    measured = Calibration.model_validate(calibrate(home, "--quick"))
    assert {rate.graph for rate in measured.rates} == {"dense", "small", "trees"}
    assert {"onnxruntime-fp32", "onnxruntime-int8", "openvino-fp32"} <= {rate.variant for rate in measured.rates}
    assert all(rate.rows_per_s > 0 for rate in measured.rates)
    placements = {(rate.instances, rate.threads) for rate in measured.rates}
    assert {(1, 1), (1, measured.cores)} <= placements
    assert measured.versions["onnxruntime"]

    site = Site(
        home=str(home),
        registry_uri="",
        artifacts_uri=(home / "artifacts").as_uri(),
        server_environment="",
        place=Machine(http="", grpc="", metrics=""),
    )
    assert known(site, this_hardware()) == measured
    expectations = expectations_of(measured)
    assert expectations is not None
    assert (expectations.rows_per_s(package(), config(8), [package()]) or 0) > 0
