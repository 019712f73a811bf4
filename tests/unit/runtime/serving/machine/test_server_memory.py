"""What a confined process uses, counted from outside, whether it keeps it in its memory or in files in memory."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from shiplift.runtime.confinement.launch import launch_command
from shiplift.runtime.confinement.policy import TRITON
from shiplift.runtime.confinement.watch import worker
from shiplift.runtime.host.interpreter import python_paths
from shiplift.runtime.serving.machine import server_memory

PLENTY = 1 << 20
KEEPERS = {
    "memory": "kept = b'x' * (100 << 20)",
    "a child's memory": "import os\nif os.fork():\n    sys.stdin.read()\nkept = b'x' * (100 << 20)",
    "/dev/shm": "open('/dev/shm/kept', 'wb').write(b'x' * (100 << 20))",
    "/tmp": "open('/tmp/kept', 'wb').write(b'x' * (100 << 20))",
    "a deleted file": "import os; file = open('/tmp/kept', 'wb'); os.unlink(file.name); file.write(b'x' * (100 << 20))",
}


@contextmanager
def server(script: str) -> Iterator[int]:
    """The pid that a confined server was started with, after it has run a script."""
    policy = replace(TRITON.opening(read=tuple(map(str, python_paths()))), ends_with_parent=True)
    code = f"import sys\n{script}\nprint('ready', flush=True); sys.stdin.read()"
    command = launch_command(policy, [sys.executable, "-c", code])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process.pid
        process.kill()


@pytest.mark.parametrize("keeper", KEEPERS)
def test_what_a_server_keeps_is_counted(keeper: str) -> None:
    with server(KEEPERS[keeper]) as pid:
        for limit in (PLENTY, 1):  # above the limit it is counted more exactly
            assert 100 <= server_memory.used_mb(pid, limit=limit) < 500


def test_its_files_in_memory_have_a_limit_of_the_kernel() -> None:
    with server("") as pid:
        mounts = [line.split() for line in Path(f"/proc/{worker(pid)}/mounts").read_text().splitlines()]
        sizes = {at: options for _, at, kind, options, *_ in mounts if kind == "tmpfs" and at in ("/tmp", "/dev/shm")}
        assert f"size={TRITON.temporary_mb * 1024}k" in sizes["/tmp"]
        assert f"size={TRITON.shared_memory_mb * 1024}k" in sizes["/dev/shm"]


def test_a_server_is_the_first_to_be_killed_when_the_machine_runs_out_of_memory() -> None:
    with server("") as pid:
        assert Path(f"/proc/{worker(pid)}/oom_score_adj").read_text() == "900\n"
