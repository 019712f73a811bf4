"""A program that is started confined: it ends as itself with all its processes, or first if the kernel refuses."""

import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from shiplift.runtime.confinement.launch import launch_command
from shiplift.runtime.confinement.policy import CONVERT, INSTALL, PYTHON_SERVICE, TRITON, ConfinementPolicy
from shiplift.runtime.host.interpreter import python_paths
from shiplift.runtime.host.processes import free_port


def launched(policy: ConfinementPolicy, *program: str, work: Path) -> "subprocess.CompletedProcess[str]":
    command = launch_command(policy.opening(write=(str(work),)), program)
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=work)


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 3", 3), ("kill -SEGV $$", -signal.SIGSEGV), ("kill -KILL $$", -signal.SIGKILL)],
)
def test_it_ends_as_the_program_does(tmp_path: Path, script: str, code: int) -> None:
    assert launched(CONVERT, "/bin/sh", "-c", script, work=tmp_path).returncode == code


def test_it_is_confined(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "secret").write_text("secret")
    script = (
        f"echo own > own; cat {tmp_path}/secret; echo x > {tmp_path}/new; ls -d /proc/[0-9]*; grep Cap /proc/$$/status"
    )
    completed = launched(CONVERT, "/bin/sh", "-c", script, work=work)
    assert (work / "own").read_text() == "own\n"
    assert not (tmp_path / "new").exists()
    assert "secret" not in completed.stdout
    pids = [int(line.split("/")[-1]) for line in completed.stdout.splitlines() if line.startswith("/proc/")]
    assert max(pids) < 10
    assert all(line.endswith("0000000000000000") for line in completed.stdout.splitlines() if line.startswith("Cap"))


def test_what_the_program_leaves_ends_with_it(tmp_path: Path) -> None:
    marker = f"8{os.getpid()}"
    launched(CONVERT, "/bin/sh", "-c", f"setsid sleep {marker} & sleep 0.2", work=tmp_path)
    assert not [p for p in psutil.process_iter(["cmdline"]) if marker in (p.info["cmdline"] or ())]


def test_signals_reach_the_program(tmp_path: Path) -> None:
    script = "trap 'echo asked; exit 7' TERM; echo ready; while :; do sleep 0.05; done"
    command = launch_command(CONVERT.opening(write=(str(tmp_path),)), ["/bin/sh", "-c", script])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.stdout.read() == "asked\n"
        assert process.wait(120) == 7


def test_a_killed_launcher_takes_the_program_along(tmp_path: Path) -> None:
    command = launch_command(TRITON.opening(write=(str(tmp_path),)), ["/bin/sh", "-c", "echo ready; sleep 600"])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
    _, left = psutil.wait_procs(family, timeout=120)
    assert left == []


SERVER = """
import os, socket, sys
for port in map(int, sys.argv[1:]):
    try:
        server = socket.create_server(("127.0.0.1", port))
        socket.create_connection(("127.0.0.1", port), 5)
        print("served")
    except OSError as error:
        print(type(error).__name__)
from multiprocessing import shared_memory
shared_memory.SharedMemory(create=True, size=1 << 20)
print(os.listdir("/dev/shm") != [])
for family, kind in ((socket.AF_UNIX, 1), (socket.AF_INET, 2), (socket.AF_PACKET, 3), (socket.AF_NETLINK, 3)):
    try:
        socket.socket(family, kind)
        print("opened")
    except PermissionError:
        print("refused")
"""


def test_a_server_has_its_ports_and_shared_memory_of_its_own_and_no_more(tmp_path: Path) -> None:
    own = free_port()
    other = own + 1
    policy = replace(TRITON.opening(read=tuple(map(str, python_paths()))), ports=(own,), connects=True)
    before = sorted(Path("/dev/shm").iterdir())
    completed = launched(policy, sys.executable, "-I", "-c", SERVER, str(own), str(other), work=tmp_path)
    assert completed.stdout.split() == ["served", "PermissionError", "True", *["refused"] * 4], completed.stderr
    assert sorted(Path("/dev/shm").iterdir()) == before


CONNECTING = """
import ctypes, socket, struct, sys
port = int(sys.argv[1])
address, raw = ("127.0.0.1", port), struct.pack("<H", 2) + struct.pack(">H", port) + bytes([127, 0, 0, 1]) + bytes(8)
FAST_OPEN, FAST_OPEN_CONNECT, MPTCP = 0x20000000, 30, 262

def by_option(protocol=0):
    own = socket.socket(proto=protocol)
    own.setsockopt(socket.IPPROTO_TCP, FAST_OPEN_CONNECT, 1)
    own.connect(address)
    own.send(b"x")

def by_many():
    data = ctypes.create_string_buffer(b"x")
    part = struct.pack("<QQ", ctypes.addressof(data), 1)
    parts, named = ctypes.create_string_buffer(part), ctypes.create_string_buffer(raw)
    head = struct.pack("<QIIQQQQiI", ctypes.addressof(named), 16, 0, ctypes.addressof(parts), 1, 0, 0, 0, 0)
    message = ctypes.create_string_buffer(head + bytes(8))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.sendmmsg(socket.socket().detach(), message, 1, FAST_OPEN) < 0:
        raise OSError(ctypes.get_errno(), "refused")

for attempt in (
    lambda: socket.socket().sendto(b"x", FAST_OPEN, address),
    lambda: socket.socket().sendmsg([b"x"], [], FAST_OPEN, address),
    by_many,
    by_option,
    lambda: socket.socket().connect(address),
    lambda: socket.socket(proto=MPTCP).connect(address),
    lambda: socket.socket(proto=MPTCP).sendto(b"x", FAST_OPEN, address),
    lambda: socket.socket(socket.AF_INET6, proto=MPTCP).connect(("::ffff:127.0.0.1", port)),
    lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132).connect(address),
    lambda: socket.socket(43, socket.SOCK_STREAM).connect(address),
):
    try:
        attempt()
        print("connected")
    except OSError as error:
        print("refused")
"""


@pytest.mark.parametrize("policy", [TRITON, INSTALL, PYTHON_SERVICE, CONVERT], ids=lambda policy: str(policy.name))
def test_nothing_connects_to_another_port_by_any_call_flag_option_or_protocol(
    tmp_path: Path, policy: ConfinementPolicy
) -> None:
    policy = replace(policy.opening(read=tuple(map(str, python_paths()))), ports=(53,) if policy.network else ())
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        completed = launched(policy, sys.executable, "-I", "-c", CONNECTING, str(port), work=tmp_path)
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.accept()
    assert completed.stdout.split() == ["refused"] * 10, completed.stderr


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    completed = launched(CONVERT, "/no/such/program", work=tmp_path)
    assert (completed.returncode, completed.stderr) == (
        127,
        "/no/such/program can't be started: No such file or directory\n",
    )


@pytest.mark.parametrize("arguments", [[], ["{}", "--", "true"], ["nonsense", "--", "true"], [CONVERT.to_json(), "--"]])
def test_a_wrong_command_line(arguments: list[str]) -> None:
    command = [sys.executable, "-I", "-m", "shiplift.runtime.confinement.launch", *arguments]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 64
    assert completed.stderr.startswith("usage: ")
