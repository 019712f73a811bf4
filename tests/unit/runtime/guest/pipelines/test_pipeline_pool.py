"""The pool of a pipeline's Python steps: whatever a step starts ends with its worker."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from shiplift.runtime.host.processes import wait_for
from shiplift.runtime.serving.bundles.repository import (
    PIPELINE_KEEPER,
    PIPELINE_MESSAGES,
    PIPELINE_POOL,
    PIPELINE_USE,
    PIPELINE_WORKER,
)

# Starts processes in every way that loses a parent: by `setsid`, by a double fork, by both, with signals ignored.
STEP = """
import os, signal, sys, time

def lost(depth, session):
    if os.fork() == 0:
        if session:
            os.setsid()
        for number in (1, 2, 3, 15):
            signal.signal(number, signal.SIG_IGN)
        if depth:
            lost(depth - 1, session)
            os._exit(0)
        os.execv(sys.executable, [sys.executable, "-c", "while True: pass", "MARKER"])

def run(x):
    for depth in (0, 1, 2):
        for session in (False, True):
            lost(depth, session)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and len(lines()) < 6:
        time.sleep(0.01)
    return {"x": x}

def lines():
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            found += [pid] * ("MARKER" in open(f"/proc/{pid}/cmdline").read())
        except OSError:
            pass
    return found
"""
POOL = """
import json, pathlib, sys, time, types
sys.modules["triton_python_backend_utils"] = types.SimpleNamespace(InferenceRequest=0, InferenceResponse=0)
import numpy as np
import pipeline_messages as messages, pool
from keeper import Keeper
limits = {"memory_mb": 512, "cpu_s": None, "processes": 32, "open_files": 256, "temporary_mb": 8}
keeper = Keeper("m", 1, folder=pathlib.Path(sys.argv[1], "states"))
worker = pool.Worker(sys.argv[1], [("a.py", "run")], limits | json.loads(sys.argv[2]), keeper)
worker.wait_until_ready(60)
message = b"".join(messages.packed({"function": "a.py:run", "answer": "/no/file"}, {"x": np.zeros(1)}))
worker.call(memoryview(message), time.monotonic() + 120, "late")
print("called", flush=True)
sys.stdin.read(1)
worker.stop()
print("stopped", flush=True)
sys.stdin.read()
"""


def marked(marker: str) -> list[psutil.Process]:
    return [each for each in psutil.process_iter(["cmdline"]) if marker in (each.info["cmdline"] or ())]


def test_what_a_step_starts_ends_with_its_worker(tmp_path: Path) -> None:
    marker = f"shiplift{os.getpid()}"
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "a.py").write_text(STEP.replace("MARKER", marker))
    for file in (PIPELINE_MESSAGES, PIPELINE_WORKER, PIPELINE_KEEPER, PIPELINE_USE):
        shutil.copyfile(file, tmp_path / file.name)
    shutil.copyfile(PIPELINE_POOL, tmp_path / "pool.py")
    command = [sys.executable, "-c", POOL, str(tmp_path), "{}"]
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as pool:
        assert pool.stdin is not None
        assert pool.stdout is not None
        try:
            assert pool.stdout.readline() == "called\n"
            started = marked(marker)
            assert len(started) >= 6
            pool.stdin.write("x")
            pool.stdin.flush()
            assert pool.stdout.readline() == "stopped\n"
            assert wait_for(started, limit_s=1) == []
        finally:
            pool.kill()
            for left in marked(marker):
                left.kill()


CALLS = (
    POOL.split("message =", maxsplit=1)[0]
    + """
def call(value, seconds=120):
    message = b"".join(messages.packed({"function": "a.py:run", "answer": "/no/file"}, {"x": np.array([value])}))
    try:
        worker.wait_until_ready(seconds)
        header, _ = messages.unpacked(worker.call(memoryview(message), time.monotonic() + seconds, "late"))
        return header.get("error", "answered")
    except pool.CallFailed as error:
        return str(error)
print(json.dumps([call(*each) for each in json.loads(sys.argv[3])]))
worker.stop()
"""
)
BEYOND = """
import os, subprocess, sys, time
def run(x):
    if x[0] == 1:
        for _ in range(6):
            if os.fork() == 0:
                other = b"x" * (100 << 20)
                time.sleep(60)
        time.sleep(60)
    if x[0] == 2:
        for _ in range(9): subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        time.sleep(60)
    if x[0] == 3:
        while True: pass
    if x[0] == 4:
        [open("/dev/null") for _ in range(100)]
    if x[0] == 5:
        open(os.path.join(os.path.dirname(__file__), "file"), "wb").write(bytes(2 << 20))
    if x[0] == 6:
        os._exit(3)
    return {"x": x}
"""


@pytest.mark.slow
def test_a_worker_beyond_a_limit_loses_its_call_and_another_one_starts_after_a_pause(tmp_path: Path) -> None:
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "a.py").write_text(BEYOND)
    for file in (PIPELINE_MESSAGES, PIPELINE_WORKER, PIPELINE_KEEPER, PIPELINE_USE):
        shutil.copyfile(file, tmp_path / file.name)
    shutil.copyfile(PIPELINE_POOL, tmp_path / "pool.py")
    limits = {"memory_mb": 256, "cpu_s": 1.0, "open_files": 64, "temporary_mb": 1}
    for value, told in (
        (1, r"its processes used \d+ MiB, the limit is 512 MiB"),
        (2, r"it had \d+ processes, the limit is 4"),
        (3, "it used over 1 s of CPU time, its limit"),
        (4, "Too many open files"),
        (5, "File too large"),
        (6, "its process ended with 3"),
    ):
        calls = json.dumps([(0,), (value,), (0, 0.2), (0,)])
        these = json.dumps(limits | {"processes": 4 if value == 2 else 32})
        command = [sys.executable, "-c", CALLS, str(tmp_path), these, calls]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        first, failed, at_once, later = json.loads(done.stdout.splitlines()[-1])
        assert re.search(told, failed), failed
        assert (first, later) == ("answered", "answered"), done.stderr
        lives = value in (4, 5)
        assert lives or re.search("the model's worker .*it starts again in 1 s", at_once), at_once
        assert lives == (at_once == "answered")
        shutil.rmtree(tmp_path / "states", ignore_errors=True)
