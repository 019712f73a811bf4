import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shiplift.runtime.host import cpu_time
from shiplift.runtime.host.cpu_time import busy_s, others_s

_SPIN = """
import time
while time.process_time() < 0.6:
    pass
print("done", flush=True)
input()
"""


def test_the_cores_that_count_are_those_of_this_process(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu 9 9 9 9\ncpu0 100 0 100 700 50 0 0 100 40 0\ncpu1 300 0 0 900\ncpu10 500 0 0 0\nintr 1 2\n")
    tick = os.sysconf("SC_CLK_TCK")
    assert busy_s({0}, stat) == 300 / tick  # steal counts; idle, waiting for disks and guests don't
    assert busy_s({0, 1}, stat) == 600 / tick


def test_a_server_is_not_one_of_the_others() -> None:
    """Its own CPU time is taken off; other tests run beside this one, so only the difference is certain."""
    spinning = subprocess.Popen([sys.executable, "-c", _SPIN], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert spinning.stdout is not None
        assert spinning.stdout.readline() == b"done\n"
        counted, off = others_s(), others_s(spinning.pid)
        assert counted is not None
        assert off is not None
        assert counted - off > 0.5
    finally:
        spinning.communicate(b"\n", timeout=60)


def test_own_work_and_that_of_ended_children_is_not_one_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_time, "busy_s", lambda _: time.process_time() + 1000)
    before = others_s()
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    after = others_s()
    assert before is not None
    assert after is not None
    assert abs(after - before) < 0.1


def test_within_a_quota_it_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_time, "cpu_share", lambda: 0.5)
    assert others_s() is None
