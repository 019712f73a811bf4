"""The host of a Python model's process: whatever the process says or does not say, it returns in time and goes on.

A real model can't send bytes of its own choice to its host at a certain moment, so a script stands for its process.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from shiplift.runtime.guest.python.host import Died, Host, Raised, Starting, TookTooLong, UsedTooMuch, split
from shiplift.runtime.model.python import bundle

READY = "out(wire.pack())\n"
Start = Callable[..., Host]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a host of a process that runs a script; `out` sends bytes, `read` waits for a request."""
    hosts = []

    def begin(script: str, grace_s: float = 0.0, **limits: float) -> Host:
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / "python").symlink_to(sys.executable)
        (tmp_path / "worker.py").write_text(
            f"import os, sys, time\nsys.path[:0] = {sys.path!r}\nfrom shiplift.runtime.guest.python import wire\n"
            "def out(data):\n    os.write(1, data)\n"
            "def read():\n    reader = wire.Reader()\n"
            "    while reader.missing:\n        reader.take(os.read(0, reader.missing) or sys.exit(3))\n"
            f"    return reader.message()[1]\n{script}"
        )
        hosts.append(Host(tmp_path, tmp_path, {"memory_mb": 512} | limits, grace_s=grace_s))
        return hosts[-1]

    yield begin
    for host in hosts:
        host.close()


def test_it_answers_many_requests_from_one_process(start: Start) -> None:
    host = start(f"{READY}while True: out(wire.pack(read()))\n")
    for size in (1, 2, 100_000):
        sent = {"x": np.arange(size, dtype=np.int64)}
        assert host.ask(sent, 120)["x"].tolist() == sent["x"].tolist()


def test_an_exception_is_told_and_the_process_stays(start: Start) -> None:
    host = start(f"{READY}read(); out(wire.pack(error='ValueError: no'))\nout(wire.pack(read()))\n")
    with pytest.raises(Raised, match="ValueError: no"):
        host.ask({"x": np.ones(1)}, 10)
    assert host.ask({"x": np.ones(1)}, 120)["x"].tolist() == [1]


@pytest.mark.parametrize(
    ("script", "error", "told"),
    [
        ("read(); time.sleep(600)", TookTooLong, "was stopped after 0.1 s, its limit"),
        ("time.sleep(600)", TookTooLong, "was stopped after 0.1 s, its limit"),  # it does not even read
        ("read(); out(b'\\x01')\ntime.sleep(600)", TookTooLong, "was stopped"),
        ("read(); sys.exit(4)", Died, "exit code 4"),
        ("read(); os.kill(os.getpid(), 11)", Died, "it died of SIGSEGV"),
        ("read(); out(b'\\xff' * 100)", Died, "is not a message"),
        ("read(); out((5).to_bytes(8, 'little') + b'{\"a\"')\ntime.sleep(600)", TookTooLong, "was stopped"),
        (
            "read(); data = bytearray(1 << 30)\nfor at in range(0, 1 << 30, 4096): data[at] = 1",
            Died,
            "the limit is 512",
        ),
    ],
)
def test_whatever_else_it_does_ends_it_and_the_next_one_is_asked(
    start: Start, tmp_path: Path, script: str, error: type[Exception], told: str
) -> None:
    once = f"if not os.path.exists({str(tmp_path / 'once')!r}):\n    open({str(tmp_path / 'once')!r}, 'w').close()\n"
    indented = "".join(f"    {line}\n" for line in script.splitlines())
    host = start(f"{READY}{once}{indented}while True: out(wire.pack(read()))\n")
    host.start()
    with pytest.raises(error, match=told):
        host.ask({"x": np.ones(1 << 20)}, 30 if error is Died else 0.1)
    assert host.ask({"x": np.ones(1)}, 120)["x"].tolist() == [1]


def test_one_that_ends_a_request_by_itself_has_time_for_that(start: Start) -> None:
    host = start(f"{READY}asked = read(); time.sleep(0.15); out(wire.pack(asked))\n", grace_s=60.0)
    host.start()
    assert host.ask({"x": np.ones(1)}, 0.05)["x"].tolist() == [1]


def test_cpu_time_and_threads_have_limits_of_their_own(start: Start) -> None:
    busy = start(f"time.sleep(0.01)\n{READY}read()\nwhile True: pass\n", cpu_s=0.2)
    with pytest.raises(UsedTooMuch, match=r"stopped after 0\.2 s of CPU time, its limit"):
        busy.ask({"x": np.ones(1)}, 60)


def test_a_process_with_too_many_threads_is_ended(start: Start) -> None:
    threads = (
        "import threading\nfor _ in range(9): threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    )
    crowded = start(f"{READY}read()\n{threads}time.sleep(600)\n", max_threads=8)
    with pytest.raises(Died, match=r"had 1[0-9] threads, the limit is 8"):
        crowded.ask({"x": np.ones(1)}, 60)


def test_requests_do_not_wait_for_a_process_that_loads_for_longer_than_they_may_take(
    start: Start, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    host = start(
        f"while not os.path.exists({str(go)!r}): time.sleep(0.01)\n{READY}while True: out(wire.pack(read()))\n"
    )
    for _ in range(2):
        with pytest.raises(Starting, match="is starting again"):
            host.ask({"x": np.ones(1)}, 0.2)
    go.touch()
    assert host.ask({"x": np.ones(1)}, 120)["x"].tolist() == [1]


def test_a_model_that_does_not_load_says_why(start: Start) -> None:
    with pytest.raises(Raised, match="ImportError: no module"):
        start("out(wire.pack(error='ImportError: no module'))").start()


def test_answers_are_split_by_their_samples() -> None:
    parts = split({"y": np.arange(6)}, [1, 3, 2])
    assert [part["y"].tolist() for part in parts] == [[0], [1, 2, 3], [4, 5]]
    with pytest.raises(Raised, match="answered 6 rows of 'y' to 4 samples"):
        split({"y": np.arange(6)}, [4])


def test_the_bundle_imports_nothing_that_it_does_not_bring(tmp_path: Path) -> None:
    folder = bundle.write_bundle(tmp_path)
    guard = {file.relative_to(folder).as_posix() for file in folder.rglob("*.py")}
    assert {"worker.py", "served.py", "host.py", "wire.py", "guard/shiplift/runtime/confinement/seccomp.py"} <= guard
    assert {"guard/landlockpy/__init__.py", "guard/seccompy/__init__.py", "guard/shiplift/__init__.py"} <= guard
