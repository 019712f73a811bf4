"""The control plane's processes start without what they never use."""

import json
import subprocess
import sys

MODULES = (
    "shiplift.pipelines.daemons.operator",
    "shiplift.pipelines.daemons.reconciler",
    "shiplift.pipelines.daemons.activator",
    "shiplift.pipelines.triggers.receiver",
    "shiplift.pipelines.daemons.page",
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
# Loads what each process would, one after another, asks for its help, which ends it, and tells what was loaded by then.
PROBE = """
import contextlib, io, json, sys
from shiplift.pipelines.daemons import slim_imports
told = {}
for module in sys.argv[1:]:
    sys.argv = ["slim_imports", module, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
        slim_imports.main()
    names = {name.partition(".")[0] for name, module in sys.modules.items() if module is not None}
    told[module] = [said.getvalue(), sorted(names)]
print(json.dumps(told))
"""


def test_no_process_of_the_control_plane_loads_anything_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *MODULES], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert list(told) == list(MODULES)
    for module, (said, loaded) in told.items():
        assert "usage" in said.lower(), module
        assert "shiplift" in loaded, module
        assert set(loaded) & HEAVY == set(), module


def test_arguments_reach_the_process_and_its_exit_code_comes_back() -> None:
    command = [sys.executable, "-m", "shiplift.pipelines.daemons.slim_imports", MODULES[0], "--pod", "x"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "--site, --packages" in done.stderr
