"""The meter as it runs in a pod: a copy of the file, started by the server, in a Python without packages."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from shiplift.runtime.guest.pod import meter
from shiplift.runtime.host.processes import free_port, listening, memory_mb
from tests.integration.conftest import until

# Becomes a server with a child that holds 64 MiB, as Triton's Python backend does.
_SERVER = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-I", sys.argv[1], sys.argv[2]])
hold = "import time; held = bytearray(b'x') * (64 << 20); print('holding', flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-I", "-c", hold])
time.sleep(600)
"""


@pytest.fixture
def measured(tmp_path: Path) -> Iterator[tuple[Any, int]]:
    """What the meter tells, and the pid of what it measures."""
    copied = shutil.copyfile(meter.__file__, tmp_path / "meter.py")
    port = free_port()
    line = [sys.executable, "-I", "-c", _SERVER, str(copied), f"127.0.0.1:{port}"]
    server = subprocess.Popen(line, stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == b"holding\n"
        until(lambda: listening("127.0.0.1", port))
        yield httpx.get(f"http://127.0.0.1:{port}/", trust_env=False, timeout=120).json(), server.pid
    finally:
        os.killpg(server.pid, 9)
        server.communicate()


def test_the_server_and_its_children_are_measured_and_the_meter_is_not(measured: tuple[Any, int]) -> None:
    answer, pid = measured
    assert 64 < answer["memory_mb"] < memory_mb(pid)


def test_what_it_runs_on_is_told(measured: tuple[Any, int]) -> None:
    answer, _ = measured
    assert answer["cores"] == meter.usable_cores()
    flags, cores, gpu = answer["hardware"]
    assert (flags == sorted(flags), bool(flags), cores) == (True, True, meter.cpu_share())
    assert isinstance(gpu, str)
    assert json.dumps(answer["hardware"]) == json.dumps(meter.hardware())


def test_where_the_kernel_tells_no_share_all_that_a_process_has_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = meter.memory_mb(os.getpid(), without=0)
    real = Path.read_text

    def without_rollup(path: Path, *words: Any, **options: Any) -> str:
        if path.name == "smaps_rollup":
            raise PermissionError(path)
        return real(path, *words, **options)

    monkeypatch.setattr(Path, "read_text", without_rollup)
    assert meter.memory_mb(os.getpid(), without=0) >= 0.9 * exact > 0
    assert meter.memory_mb(2**22 + 1, without=0) == 0


@pytest.mark.parametrize(
    ("own", "files", "share"),
    [
        ("0::/\n", {"cpu.max": "50000 100000"}, 0.5),
        ("0::/\n", {"cpu.max": "max 100000"}, 64),
        ("0::/\n", {"cpu.max": "9900000 100000"}, 64),  # more than there are
        ("0::/pods/a\n", {"pods/a/cpu.max": "max 100000", "pods/cpu.max": "150000 100000"}, 1.5),
        ("0::/pods/a\n", {"pods/a/cpu.max": "200000 100000", "cpu.max": "100000 100000"}, 1),
        ("0::/\n", {"cpu.max": "garbage"}, 64),
        ("0::/\n", {}, 64),
        ("4:cpu,cpuacct:/\n", {"cpu,cpuacct/cpu.cfs_quota_us": "-1", "cpu,cpuacct/cpu.cfs_period_us": "100000"}, 64),
        ("4:cpu,cpuacct:/a\n0::/\n", {"cpu/a/cpu.cfs_quota_us": "250000", "cpu/a/cpu.cfs_period_us": "100000"}, 2.5),
        ("12:cpuset:/a\n", {"cpu.max": "100000 100000"}, 64),
    ],
)
def test_the_quota_of_a_container_limits_its_share(
    own: str, files: dict[str, str], share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(text)
    assert meter.cpu_share(tmp_path / "own", tmp_path / "groups") == share


def test_part_of_a_core_counts_as_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = {0.5: 1, 1: 1, 1.5: 2, 2.0: 2}
    for share, cores in shares.items():
        monkeypatch.setattr(meter, "cpu_share", lambda share=share: share)
        assert meter.usable_cores() == cores
