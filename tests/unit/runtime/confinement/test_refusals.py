"""Kernels that refuse a mechanism, simulated by a seccomp filter: without the site's consent, no sandbox starts."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from shiplift.runtime.confinement.launch import launch_command
from shiplift.runtime.confinement.policy import CONVERT, WAIVABLE
from shiplift.runtime.records.model import Isolation

# An old kernel, or a container whose profile forbids these calls
REFUSED = {"namespaces": ("unshare", 1), "landlock": ("landlock_create_ruleset", 38), "seccomp": ("seccomp", 22)}
PLAY = """
import contextlib, json, os, sys
from pathlib import Path
from dataclasses import replace
from seccompy import Action, Filter

def play(name, number):
    kernel = Filter(default=Action.ALLOW)
    kernel.errno(name, number)
    kernel.load()

refused, waived, work, code = json.loads(sys.argv[1])
for name, number in refused:
    play(name, number)
from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.confinement.policy import CONVERT, Entry, SandboxLimits
from shiplift.runtime.confinement.sandbox import Sandbox
box = Sandbox(Entry("timeit:timeit"), read=[], work=Path(work), policy=replace(CONVERT, allow_without=tuple(waived)))
with contextlib.closing(box):
    try:
        _, isolation = box.run({"stmt": code, "number": 1}, SandboxLimits(memory_mb=512, timeout_s=30))
        print(isolation.model_dump_json())
    except ShipliftError as error:
        print(json.dumps({"error": type(error).__name__, "code": error.exit_code, "what": error.what, "do": error.do}))
"""


def on_kernel_without(
    *mechanisms: str, waived: tuple[str, ...] = (), work: Path, code: str = "open('ran', 'w')"
) -> dict[str, Any]:
    order = json.dumps([[REFUSED[name] for name in mechanisms], waived, str(work), code])
    completed = subprocess.run(
        [sys.executable, "-c", PLAY, order], capture_output=True, text=True, check=False, timeout=60
    )
    assert completed.returncode == 0, completed.stderr
    answer: dict[str, Any] = json.loads(completed.stdout)
    return answer


@pytest.mark.parametrize("mechanism", WAIVABLE)
def test_what_the_kernel_refuses_ends_it_before_any_code_runs_whatever_else_is_waived(
    tmp_path: Path, mechanism: str
) -> None:
    others = tuple(name for name in WAIVABLE if name != mechanism)
    error = on_kernel_without(mechanism, waived=others, work=tmp_path)
    assert (error["error"], error["code"]) == ("NotConfined", 50)
    assert f": {mechanism}: " in error["what"]
    assert f"allow_without: [{mechanism}]" in error["do"]
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("mechanism", "lost"),
    [
        ("namespaces", {"network": "seccomp", "processes": "none", "mounts": "none"}),
        ("landlock", {"files": "none"}),
        ("seccomp", {"calls": "none"}),
    ],
)
def test_a_waiver_is_in_the_record(tmp_path: Path, mechanism: str, lost: dict[str, str]) -> None:
    held = Isolation.model_validate(on_kernel_without(mechanism, waived=(mechanism,), work=tmp_path)).model_dump()
    everything = {
        "network": "namespace",
        "processes": "namespace",
        "mounts": "read-only",
        "files": "landlock",
        "calls": "seccomp",
        "memory_limit_mb": 512,
        "timeout_s": 30,
    }
    assert held == everything | lost
    assert (tmp_path / "ran").exists()


def test_a_waiver_gives_nothing_away_that_the_kernel_has(tmp_path: Path) -> None:
    held = on_kernel_without(waived=WAIVABLE, work=tmp_path)
    assert "none" not in held.values()


DAEMONS = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.execv("/bin/sleep", ["/bin/sleep", MARKER])
time.sleep(0.3)
"""


def test_daemons_end_without_namespaces_too(tmp_path: Path) -> None:
    marker = f"9{os.getpid()}"
    code = DAEMONS.replace("MARKER", repr(marker))
    assert "error" not in on_kernel_without("namespaces", waived=("namespaces",), work=tmp_path, code=code)
    assert not [p for p in psutil.process_iter(["cmdline"]) if marker in (p.info["cmdline"] or ())]


NEIGHBOURS = """
import ctypes, os, resource, socket
tried = {}
for name, attempt in {
    "kill": lambda: os.kill(PRODUCTION, 9),
    "limit": lambda: resource.prlimit(PRODUCTION, resource.RLIMIT_CPU, (1, 1)),
    "pin": lambda: os.sched_setaffinity(PRODUCTION, {0}),
    "open": lambda: os.pidfd_open(PRODUCTION),
    "read": lambda: open(f"/proc/{PRODUCTION}/cmdline").read(),
    "list": lambda: os.listdir("/proc"),
    "network": lambda: socket.socket(),
}.items():
    try:
        attempt()
        tried[name] = "done"
    except PermissionError:
        pass
open("tried", "w").write(str(tried))
"""


def test_neighbours_are_safe_without_namespaces_too(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as production:
        code = NEIGHBOURS.replace("PRODUCTION", str(production.pid))
        held = on_kernel_without("namespaces", waived=("namespaces",), work=tmp_path, code=code)
        alive = production.poll() is None
        production.kill()
    assert "error" not in held, held
    assert (tmp_path / "tried").read_text() == "{}"
    assert alive


def test_a_program_does_not_start_unconfined(tmp_path: Path) -> None:
    command = launch_command(CONVERT.opening(write=(str(tmp_path),)), ["/bin/touch", str(tmp_path / "ran")])
    play = PLAY.partition("refused, waived")[0] + f"play('unshare', 1); os.execv({command[0]!r}, {command!r})"
    completed = subprocess.run([sys.executable, "-c", play], capture_output=True, text=True, check=False)
    assert completed.returncode == 50
    assert completed.stderr.startswith("not confined: namespaces: ")
    assert not (tmp_path / "ran").exists()
