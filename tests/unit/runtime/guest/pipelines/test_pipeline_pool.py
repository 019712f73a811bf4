"""The pool of a pipeline's Python steps: whatever a step starts ends with its worker."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil

from shiplift.runtime.host.processes import wait_for
from shiplift.runtime.serving.bundles.repository import PIPELINE_MESSAGES, PIPELINE_POOL, PIPELINE_WORKER

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
import sys, time, types
sys.modules["triton_python_backend_utils"] = types.SimpleNamespace(InferenceRequest=0, InferenceResponse=0)
import numpy as np
import pipeline_messages as messages, pool
worker = pool.Worker(sys.argv[1], [("a.py", "run")], 512)
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
    for file in (PIPELINE_MESSAGES, PIPELINE_WORKER):
        shutil.copyfile(file, tmp_path / file.name)
    shutil.copyfile(PIPELINE_POOL, tmp_path / "pool.py")
    command = [sys.executable, "-c", POOL, str(tmp_path)]
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
