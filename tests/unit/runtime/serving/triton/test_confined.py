"""What confines the bundled server; that code inside a real one gets nowhere is for the integration tests."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from shiplift.runtime.confinement.policy import ConfinementPolicy
from shiplift.runtime.serving.triton.confined import confined
from shiplift.runtime.serving.triton.environment import ServerEnvironment

IN_POD = """
import json, os, sys
from pathlib import Path
from shiplift.runtime.serving.triton.confined import confine_in_pod
from shiplift.runtime.serving.triton.environment import ServerEnvironment

missing = confine_in_pod(ServerEnvironment(Path(sys.argv[1])), Path(sys.argv[1]), (8000,))

def refused(call, *arguments):
    try:
        call(*arguments)
    except PermissionError:
        return True
    return False

print(json.dumps({
    "missing": missing,
    "own": (Path(sys.argv[1]) / "own").read_text(),
    "outside": refused(Path(sys.argv[2]).read_text),
    "write": refused((Path(sys.argv[1]) / "own").write_text, "x"),
    "privileges": "NoNewPrivs:\\t1" in Path("/proc/self/status").read_text(),
    "user": refused(os.setgroups, []),
}))
"""


def test_the_server_starts_confined_to_its_files_and_ports(tmp_path: Path) -> None:
    environment, repository = ServerEnvironment(tmp_path / "env"), tmp_path / "models"
    command = confined(["triton"], environment, repository, ports=(1, 2, 3), ends_with_parent=True, allow_without=())
    policy = ConfinementPolicy.from_json(command[command.index("--") - 1])
    assert command[-1] == "triton"
    assert (policy.ports, policy.connects, policy.write) == ((1, 2, 3), False, ())
    assert {str(environment.root), str(repository)} <= set(policy.read)
    assert str(tmp_path) not in policy.read
    assert policy.ends_with_parent


def test_in_a_pod_the_process_is_confined_in_place() -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        own, outside = Path(folder) / "server", Path(folder) / "outside"
        own.mkdir()
        (own / "own").write_text("own")
        outside.write_text("outside")
        command = [sys.executable, "-c", IN_POD, str(own), str(outside)]
        completed = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(completed.stdout) == {
        "missing": {},
        "own": "own",
        "outside": True,
        "write": True,
        "privileges": True,
        "user": True,
    }
