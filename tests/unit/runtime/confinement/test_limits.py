"""The resources of a confined process: tasks, files, disk, and memory that no single process shows."""

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest

from shiplift.runtime.base.errors import ExportFailed, SandboxLimit
from shiplift.runtime.confinement.policy import CONVERT, PARSE, QUANTIZE, ConfinementPolicy, Entry, SandboxLimits
from shiplift.runtime.confinement.sandbox import Sandbox
from shiplift.runtime.host.folders import remove_tree
from tests.unit.examples import endless

LIMITS = SandboxLimits(memory_mb=512, timeout_s=60)


def run(folder: Path, code: str, policy: ConfinementPolicy, limits: SandboxLimits = LIMITS) -> None:
    with contextlib.closing(Sandbox(Entry("timeit:timeit"), read=[], work=folder / "work", policy=policy)) as box:
        box.run({"stmt": code, "number": 1}, limits)


@pytest.mark.slow
def test_a_fork_bomb_ends_at_its_limit(tmp_path: Path) -> None:
    bomb = "import os, time\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        time.sleep(0.01)"
    with pytest.raises(SandboxLimit, match=r"started \d+ processes and threads, the limit is 100"):
        run(tmp_path, bomb, replace(CONVERT, tasks=100), SandboxLimits(memory_mb=65536, timeout_s=120))


def test_the_memory_of_a_daemon_counts(tmp_path: Path) -> None:
    code = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        kept = b"x" * (400 << 20)
        time.sleep(60)
    os._exit(0)
time.sleep(60)
"""
    with pytest.raises(SandboxLimit, match="the limit is 300 MiB"):
        run(tmp_path, code, CONVERT, SandboxLimits(memory_mb=300, timeout_s=50))


WAIT = "\nimport time; time.sleep(60)"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("for number in range(2000): open(str(number), 'w')" + WAIT, "wrote more than 1000 files"),
        ("for n in range(8): open(str(n), 'wb').write(b'x' * (10 << 20))" + WAIT, "the limit is 64 MiB"),
        (
            "import os\nkept = [open(str(n), 'wb', 0) for n in range(8)]\n"
            "for n, file in enumerate(kept): os.unlink(str(n)); file.write(b'x' * (10 << 20))" + WAIT,
            "the limit is 64 MiB",
        ),
        ("import os\nfor n in range(1500): os.mkdir('deep'); os.chdir('deep')" + WAIT, "nested so deep"),
        ("import os\nfor n in range(30): os.mkdir('x' * 200); os.chdir('x' * 200)" + WAIT, "nested so deep"),
    ],
    ids=["files", "size", "deleted", "nested", "long"],
)
def test_the_work_folder_has_a_quota(tmp_path: Path, code: str, words: str) -> None:
    try:
        with pytest.raises(SandboxLimit, match=words):
            run(tmp_path, code, replace(CONVERT, work_mb=64, work_files=1000))
    finally:
        remove_tree(tmp_path / "work")  # pytest can't: it recurses


def test_open_files_are_limited(tmp_path: Path) -> None:
    with pytest.raises(ExportFailed, match="Too many open files"):
        run(tmp_path, "kept = [open('/dev/null') for _ in range(300)]", PARSE)


@pytest.mark.parametrize("code", ["import os; os.fork()", "import os; os.execv('/bin/true', ['true'])"])
def test_a_parser_starts_nothing(tmp_path: Path, code: str) -> None:
    with pytest.raises(ExportFailed, match="PermissionError"):
        run(tmp_path, code, PARSE)


def test_a_parser_may_use_threads(tmp_path: Path) -> None:
    run(tmp_path, "import threading; t = threading.Thread(target=print); t.start(); t.join()", PARSE)


def test_a_graph_that_loops_for_ever_at_one_size_of_batch_is_told_by_that_size(tmp_path: Path) -> None:
    """It answers the batches of the proof, and would keep a stage busy until all of its time is over."""
    model = endless(tmp_path / "model.onnx", stuck=[4])
    code = f"""
from pathlib import Path
import numpy as np
from shiplift.runtime.model import onnx_models
session = onnx_models.session(Path({str(model)!r}))
for size in (1, 2, 7, 4):
    onnx_models.answer(session, {{"input": np.ones((size, 4), np.float32)}})
"""
    box = Sandbox(Entry("timeit:timeit"), read=[tmp_path], work=tmp_path / "work", policy=QUANTIZE)
    limits = SandboxLimits(memory_mb=2048, timeout_s=600, answer_s=1)
    with contextlib.closing(box), pytest.raises(SandboxLimit, match="took over 1 s to answer a batch of 4"):
        box.run({"stmt": code, "number": 1}, limits)
