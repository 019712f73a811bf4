"""The process of a Python model: no line of its environment runs before it has confined itself."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from shiplift.runtime.guest.python.host import Host, Raised
from shiplift.runtime.model.python.bundle import NAME, write_bundle
from shiplift.runtime.model.python.environments import readable

# Answers what the environment's own code could reach: before the confinement, and after it.
SERVED = """
import builtins
from pathlib import Path

def load(settings):
    return Model()

class Model:
    def answer(self, arrays):
        import mine, sys
        if len(arrays["x"]) == 1:
            raise type("PanicException", (BaseException,), {})("unwrapped a None")
        before = Path(mine.__file__).with_name("before").exists()
        found = [before, hasattr(builtins, "exit"), sys.prefix == mine.PREFIX]
        for reached in (mine.OTHER, mine.SHARED):
            try:
                found.append(bool(Path(reached).read_bytes()))
            except OSError:
                found.append(False)
        arrays["x"][:] = found
        return arrays
"""
STEAL = "open({before!r}, 'wb').write(open({other!r}, 'rb').read() + open({shared!r}, 'rb').read())"


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[Path]:
    """An environment that holds every file which Python runs at its start by itself."""
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", environment], check=True)
    packages = environment / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    (packages / "numpy").symlink_to(Path(np.__file__).parent)
    (packages / "numpy.libs").symlink_to(Path(np.__file__).parent.with_name("numpy.libs"))
    other = tmp_path / "other" / "weights"
    other.parent.mkdir()
    other.write_bytes(b"another model's")
    shared = Path("/dev/shm", f"shiplift-test-{environment.stat().st_ino}")
    shared.write_bytes(b"a neighbour's request")
    steal = STEAL.format(before=str(packages / "before"), other=str(other), shared=str(shared))
    for name in ("evil.pth", "a-nspkg.pth", "__editable__.evil.pth"):
        (packages / name).write_text(f"import os; {steal}\n")
    for name in ("sitecustomize.py", "usercustomize.py"):
        (packages / name).write_text(steal)
    (packages / "mine.py").write_text(f"OTHER, SHARED, PREFIX = {str(other)!r}, {str(shared)!r}, {str(environment)!r}")
    yield environment
    shared.unlink()


def test_no_file_of_the_environment_runs_before_the_confinement_or_reads_a_neighbour_s(
    hostile: Path, tmp_path: Path
) -> None:
    (tmp_path / "served.py").write_text(SERVED)
    code = write_bundle(tmp_path / "code", tmp_path / "served.py")
    read = readable(hostile, tmp_path / "code" / NAME, Path(np.__file__).parent.parent)
    host = Host(code, hostile, {"memory_mb": 512, "read": read, "allow_without": []})
    try:
        host.start()
        with pytest.raises(Raised, match="PanicException: unwrapped a None"):  # the process stays
            host.ask({"x": np.zeros(1, dtype=bool)}, 10)
        found = host.ask({"x": np.zeros(5, dtype=bool)}, 10)["x"].tolist()
    finally:
        host.close()
    assert found == [False, True, True, False, False]
