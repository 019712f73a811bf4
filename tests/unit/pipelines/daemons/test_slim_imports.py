"""The control plane's processes start without what they never use."""

import json
import subprocess
import sys

import pytest

MODULES = (
    "shiplift.pipelines.daemons.operator",
    "shiplift.pipelines.daemons.reconciler",
    "shiplift.pipelines.daemons.activator",
    "shiplift.pipelines.triggers.receiver",
)
HEAVY = {
    "kubernetes",
    "oauthlib",
    "requests_oauthlib",
    "rich",
    "pygments",
    "mlflow",
    "pandas",
    "onnx",
    "torch",
}
# Loads what the process would, asks for its help, which ends it, and tells what was loaded.
PROBE = """
import atexit, json, sys
from shiplift.pipelines.daemons import slim_imports
names = lambda: sorted({name.partition(".")[0] for name, module in sys.modules.items() if module is not None})
atexit.register(lambda: print("\\n" + json.dumps(names()), flush=True))
sys.argv = ["slim_imports", sys.argv[1], "--help"]
slim_imports.main()
"""


@pytest.mark.parametrize("module", MODULES)
def test_a_process_of_the_control_plane_loads_nothing_heavy(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, module], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout.lower()
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert "shiplift" in loaded
    assert loaded & HEAVY == set()


def test_arguments_reach_the_process_and_its_exit_code_comes_back() -> None:
    command = [sys.executable, "-m", "shiplift.pipelines.daemons.slim_imports", MODULES[0], "--pod", "x"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "--site, --packages" in done.stderr
