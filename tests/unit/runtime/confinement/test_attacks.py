"""Every attack of `attacks.py`: by the tests' own user, by a plain user, and in something like a restricted pod."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.unit.runtime.confinement.attacks import ALLOWED, ATTACKS

ROOT = Path(__file__).parents[4]
NOBODY = "65534"
REFUSALS = {"PermissionError", "OSError", "AssertionError", "ProcessLookupError", "FileNotFoundError", "ValueError"}
# As root: a mount namespace in which a plain user can reach the interpreter, wherever that is.
# `pod`: a masked /proc, as containers have, with which the kernel allows no other mount, unless it sees a whole
# one elsewhere, such as of a container that runs on this machine.
AS_USER = """
set -e
mkdir -p "$1"; chmod 777 "$1"
hidden=$(realpath "$2"); hidden=${hidden#/}; hidden=/${hidden%%/*}
if [ -z "$(setpriv --reuid NOBODY --regid NOBODY --clear-groups sh -c "test -x '$2' && echo yes")" ]; then
  mkdir "$1/kept"; home=$(realpath "$2"); home=${home%/bin/*}
  mount --bind "$home" "$1/kept"
  mount -t tmpfs -o mode=755 tmpfs "$hidden"
  mkdir -p "$home"
  mount --bind "$1/kept" "$home"
fi
[ "$3" = user ] || awk '/ - proc / && $5 != "/proc" { print $5 }' /proc/self/mountinfo | xargs -r -n 1 umount -l
[ "$3" = user ] || mount -t tmpfs -o ro tmpfs /proc/acpi || mount -t tmpfs -o ro tmpfs /proc/irq
exec setpriv --reuid NOBODY --regid NOBODY --clear-groups --inh-caps=-all --bounding-set=-all --no-new-privs \
  "$2" -m tests.unit.runtime.confinement.attacks "$1/attacked"
""".replace("NOBODY", NOBODY)


@pytest.fixture(scope="module", params=["self", "user", "pod"])
def went(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    if request.param != "self" and os.getuid() != 0:
        pytest.skip("only root can become another user: `self` is a plain user here")
    with TemporaryDirectory() as folder:  # pytest's own are closed to other users
        Path(folder).chmod(0o755)
        yield _outcome(request.param, Path(folder))


def _outcome(who: str, folder: Path) -> dict[str, Any]:
    (folder / "attacked").mkdir()
    command = [sys.executable, "-m", "tests.unit.runtime.confinement.attacks", str(folder / "attacked")]
    if who != "self":
        os.chown(folder / "attacked", int(NOBODY), int(NOBODY))
        command = ["unshare", "--mount", "sh", "-c", AS_USER, "sh", str(folder), sys.executable, who]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert completed.returncode == 0, completed.stderr
    outcome: dict[str, Any] = json.loads(completed.stdout)
    return outcome | {"who": who}


def test_hostile_code_is_refused_and_not_just_wrong(went: dict[str, Any]) -> None:
    """A typing error in an attack must not count as a refusal."""
    met = {attack: went["outcomes"][attack] for attack in ATTACKS}
    assert met
    assert {attack: outcome for attack, outcome in met.items() if outcome.split(":")[0] not in REFUSALS} == {}


def test_honest_code_can(went: dict[str, Any]) -> None:
    met = {need: went["outcomes"][need] for need in ALLOWED}
    assert met == dict.fromkeys(ALLOWED, "done")


def test_the_neighbours_noticed_nothing(went: dict[str, Any]) -> None:
    before, after = went["production"]
    assert before == after
    assert before[0]
    before, after = went["files"]
    assert before == after
    assert not went["heard"]


def test_where_the_kernel_allows_no_other_proc_landlock_hides_the_processes(went: dict[str, Any]) -> None:
    assert went["own_proc"] == (went["who"] != "pod")


def test_everything_held(went: dict[str, Any]) -> None:
    assert went["uid"] == (os.getuid() if went["who"] == "self" else int(NOBODY))
    assert went["isolation"] == {
        "network": "namespace",
        "processes": "namespace",
        "mounts": "read-only",
        "files": "landlock",
        "calls": "seccomp",
        "memory_limit_mb": 1024,
        "timeout_s": 60,
    }
