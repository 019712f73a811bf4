import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from shiplift.runtime.base.errors import PortTaken
from shiplift.runtime.host import processes
from shiplift.runtime.records.process import Process

DEAF = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); sys.stdin.read()"
POLITE = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(print('bye', flush=True)))
print('up', flush=True)
sys.stdin.read()
"""


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "600"]) as child:
        yield child
        child.kill()


def gone(pid: int) -> bool:
    """Whether it ends; in a container, what inherits it may reap it late."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.01)
    return False


def test_a_process_is_alive_until_it_ends(sleeper: "subprocess.Popen[bytes]") -> None:
    process = processes.identify(sleeper.pid)
    assert processes.alive(process)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)  # a zombie now
    assert not processes.alive(process)
    sleeper.wait()
    assert not processes.alive(process)


def test_a_pid_used_again_is_another_process() -> None:
    me = processes.identify(os.getpid())
    assert processes.alive(me)
    assert not processes.alive(Process(pid=me.pid, started_at=me.started_at - 100))


def test_a_zombie_has_ended() -> None:
    """Its parent, like the first process of some containers, reaps nothing."""
    script = "import subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid, flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        child.terminate()
        assert processes.wait_for([child], limit_s=60) == []
        assert child.status() == psutil.STATUS_ZOMBIE


def test_stopping_asks_first_and_kills_who_does_not_listen() -> None:
    for script, last_words in ((POLITE, b"bye\n"), (DEAF, b"")):
        with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"up\n"
            processes.stop(processes.identify(child.pid), grace_s=10 if last_words else 0.2)
            assert gone(child.pid)
            assert child.stdout.read() == last_words


def test_stopping_ends_the_children_too() -> None:
    script = "import subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid, flush=True); sys.stdin.read()"
    parent = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    processes.stop(processes.identify(parent.pid), grace_s=0.5)
    assert gone(child)
    assert gone(parent.pid)


def test_a_child_that_is_stopped_in_its_own_turn_is_not_waited_for() -> None:
    script = "import subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid, flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = processes.identify(int(parent.stdout.readline()))
        processes.stop(processes.identify(parent.pid), grace_s=600, apart=(child,))
        assert gone(parent.pid)
        assert processes.alive(child)
        processes.stop(child)


def test_a_process_that_is_gone_or_another_s_is_left_alone(sleeper: "subprocess.Popen[bytes]") -> None:
    stranger = Process(pid=sleeper.pid, started_at=0)
    for end in (processes.stop, processes.kill):
        end(stranger)
        end(Process(pid=2**22 - 1, started_at=0))
    assert sleeper.poll() is None


def test_killing_ends_a_process_at_once(sleeper: "subprocess.Popen[bytes]") -> None:
    processes.kill(processes.identify(sleeper.pid))
    assert not psutil.pid_exists(sleeper.pid)


def test_a_child_writes_to_its_log_and_sees_the_given_environment_alone(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "child.log"
    for _ in range(2):
        words = [sys.executable, "-c", "import os; print(sorted(os.environ))"]
        child = processes.start_child(words, environment={"LC_CTYPE": "C.UTF-8"}, log=log, folder=tmp_path)
        assert child.wait(timeout=120) == 0
    assert log.read_text() == "['LC_CTYPE']\n" * 2


@pytest.mark.slow
def test_a_child_dies_with_its_parent_and_a_daemon_does_not(tmp_path: Path) -> None:
    script = f"""
import sys
from pathlib import Path
from shiplift.runtime.host.processes import start_child, start_daemon
log = Path({str(tmp_path / "log")!r})
child = start_child(["sleep", "600"], environment={{}}, log=log)
daemon = start_daemon(["/bin/sleep", "600"], environment={{}}, log=log)
print(child.pid, daemon.pid, flush=True)
sys.stdin.read()
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child, daemon = (int(word) for word in parent.stdout.readline().split())
    left = processes.identify(daemon)
    try:
        assert os.getsid(daemon) == daemon
        parent.kill()
        parent.wait(timeout=120)
        assert gone(child)
        assert processes.alive(left)
    finally:
        processes.kill(left)


def test_memory_is_counted_with_the_children(sleeper: "subprocess.Popen[bytes]") -> None:
    assert processes.memory_mb(os.getpid()) > 10
    assert 0 < processes.memory_mb(sleeper.pid) < 10
    assert processes.memory_mb(2**22 - 1) == 0


def test_a_process_s_peak_is_its_own_and_not_its_parent_s() -> None:
    held = np.ones(200 << 17)  # 200 MiB
    script = "from shiplift.runtime.host.processes import own_memory_mb; print(own_memory_mb()[1])"
    child = float(subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout)
    now, most = processes.own_memory_mb()
    assert most >= now > held.nbytes / 2**20
    assert 5 < child < 150


def test_a_port_that_is_free_can_be_taken_and_is_then_told_with_its_holder() -> None:
    port = processes.free_port()
    processes.require_free("127.0.0.1", port, "mlflow", "--mlflow-port")
    with socket.create_server(("127.0.0.1", port)), pytest.raises(PortTaken) as error:
        processes.require_free("127.0.0.1", port, "mlflow", "--mlflow-port")
    assert f"port {port}, needed by mlflow, is taken" in error.value.what
    assert f"(pid {os.getpid()})" in error.value.what
    assert "--mlflow-port" in error.value.do


def test_credentials_are_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("PATH", "/bin")
    assert processes.inherited()["PATH"] == "/bin"
    assert set(processes.inherited()) <= {"PATH", "HOME", "LANG", "TMPDIR", "TZ"}


def test_who_does_not_notice_that_its_server_was_killed_is_killed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_NOTICE_S", 0.1)
    script = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        child = int(server.stdout.readline())
        processes.kill(processes.identify(server.pid))
    assert gone(child)


def test_processes_start_while_grpc_is_in_use_without_its_handler_of_forks(tmp_path: Path) -> None:
    script = """
import os, sys, threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shiplift.runtime.host.processes import start_child
import grpc

class Echo(grpc.GenericRpcHandler):
    def service(self, _):
        return grpc.unary_unary_rpc_method_handler(lambda request, _: request)

server = grpc.server(ThreadPoolExecutor(2), handlers=(Echo(),))
port = server.add_insecure_port("127.0.0.1:0")
server.start()

def ask():
    while True:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            channel.unary_unary("/a/b")(b"x")

for _ in range(2):
    threading.Thread(target=ask, daemon=True).start()
for _ in range(20):
    start_child(["true"], environment=dict(os.environ), log=Path(sys.argv[1])).wait()
os._exit(0)
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_ENABLE")}
    command = [sys.executable, "-c", script, str(tmp_path / "log")]
    done = subprocess.run(command, env=environment, check=False, timeout=300, capture_output=True, text=True)
    assert (done.returncode, "fork() handlers" in done.stderr) == (0, False)  # which it says each time it runs them
