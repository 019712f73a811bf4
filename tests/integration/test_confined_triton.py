"""What a model that has taken over the server can do: code in its Python backend tries, in a real confined Triton."""

import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest
from tritonclient import grpc

from shiplift.runtime.base.errors import NotConfined
from shiplift.runtime.host.processes import alive, kill
from shiplift.runtime.serving.machine.server import Server, private_server, start_private
from shiplift.runtime.serving.triton import confined
from shiplift.runtime.serving.triton.client import TritonClient
from shiplift.runtime.serving.triton.command_line import Features
from shiplift.runtime.serving.triton.environment import ServerEnvironment, default_root
from tests.integration.conftest import until

pytestmark = pytest.mark.integration
ENVIRONMENT = ServerEnvironment(default_root())
CONFIG = """
name: "hostile" backend: "python"
input { name: "code" data_type: TYPE_STRING dims: [1] }
output { name: "answer" data_type: TYPE_STRING dims: [1] }
instance_group { count: 1 kind: KIND_CPU }
"""
MODEL = """
import os, sys
sys.path[:0] = os.environ["SHIPLIFT_SERVER_SITE"].split(os.pathsep)
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self._one(request) for request in requests]

    def _one(self, request):
        names: dict[str, str | int] = {}
        try:
            exec(request.inputs()[0].as_numpy().ravel()[0].decode(), names)
            answer = repr(names.get("answer", "done"))
        except BaseException as error:
            answer = f"refused: {type(error).__name__} {getattr(error, 'errno', '')}"
        array = np.array([answer.encode()], dtype=object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("answer", array)])
"""


@dataclass(frozen=True, kw_only=True)
class Taken:
    """A server that does what we say, and a neighbour's file and port."""

    server: Server
    secret: Path
    port: int

    def run(self, code: str) -> str:
        """What code answers inside the server; `refused: ...` if it raised."""
        tensor = grpc.InferInput("code", [1], "BYTES")
        names: dict[str, str | int] = {
            "SECRET": str(self.secret),
            "MODELS": str(self.server.repository),
            "PORT": self.port,
            "PID": os.getpid(),
        }
        prelude = "import ctypes, os, socket, resource\nlibc = ctypes.CDLL(None, use_errno=True)\n" + "".join(
            f"{name} = {json.dumps(value)}\n" for name, value in names.items()
        )
        check = """
def call(name, *arguments):
    result = getattr(libc, name)(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), name)
    return result
"""
        tensor.set_data_from_numpy(np.array([(prelude + check + code).encode()], dtype=np.object_))
        answer = grpc.InferenceServerClient(self.server.grpc).infer("hostile", [tensor], client_timeout=60)
        return str(answer.as_numpy("answer").item().decode())


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Taken]:
    work = tmp_path_factory.mktemp("taken")
    folder = work / "server" / "models" / "hostile"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(CONFIG)
    (folder / "1" / "model.py").write_text(MODEL)
    secret = work / "secrets.json"
    secret.write_text("secret")
    with (
        socket.create_server(("127.0.0.1", 0)) as neighbour,
        private_server(ENVIRONMENT, folder.parent, Features(cache_mb=0), log=work / "log") as server,
        TritonClient(server.grpc, repository_key=server.key) as client,
    ):
        client.load("hostile")
        yield Taken(server=server, secret=secret, port=neighbour.getsockname()[1])


ATTACKS = {
    "read a file of the user": "answer = open(SECRET).read()",
    "read the user's home": "answer = os.listdir(os.path.expanduser('~root'))",
    "read the users of the machine": "answer = open('/etc/shadow').read()",
    "change a file's mode": "os.chmod(SECRET, 0o666); answer = oct(os.stat(SECRET).st_mode) if open(SECRET) else ''",
    "write into the model repository": "open(MODELS + '/x', 'w')",
    "write into its environment": "open(os.environ['SHIPLIFT_SERVER_SITE'] + '/x.py', 'w')",
    "connect to a neighbour": "socket.create_connection(('127.0.0.1', PORT), 5)",
    "listen on another port": "socket.create_server(('127.0.0.1', 0))",
    "send a datagram": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "talk to a Unix socket": "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)",
    "send raw packets": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "signal a neighbour": "os.kill(PID, 0)",
    "limit a neighbour": "resource.prlimit(PID, resource.RLIMIT_CPU, (1, 1))",
    "slow a neighbour": "os.setpriority(os.PRIO_PROCESS, PID, 19)",
    "trace": "call('ptrace', 16, PID, 0, 0)",
    "enter new namespaces": "call('unshare', 0x10000000)",
    "mount": "call('mount', b'none', b'/tmp', b'tmpfs', 0, None)",
    "load a program into the kernel": "call('syscall', 321, 0, 0, 0)",
    "become another user": "os.setuid(65534)",
    "use io_uring": "call('syscall', 425, 8, 0)",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_code_in_the_server_can_not(taken: Taken, attack: str) -> None:
    answer = taken.run(ATTACKS[attack])
    assert answer.startswith("refused: "), answer
    assert taken.secret.stat().st_mode & 0o777 == 0o644


def test_it_sees_no_process_but_its_own(taken: Taken) -> None:
    pids = taken.run("answer = [int(name) for name in os.listdir('/proc') if name.isdigit()]")
    assert max(json.loads(pids)) < 100, pids


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm"])
def test_its_temporary_files_and_shared_memory_are_its_own(taken: Taken, folder: str) -> None:
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        name = Path(file.name).name
        assert taken.run(f"answer = {name!r} in os.listdir({folder!r})") == "False"
        assert taken.run(f"open({folder + '/' + name!r}, 'w').write('x')") == "'done'"
        assert not Path(file.name).read_bytes()


def test_it_holds_no_capability_and_gains_none(taken: Taken) -> None:
    status = taken.run("answer = open('/proc/self/status').read()")
    for field in ("CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb"):
        assert f"{field}:\\t0000000000000000" in status
    assert "NoNewPrivs:\\t1" in status
    assert "Seccomp:\\t2" in status


def test_the_process_that_is_recorded_is_the_server_s_life(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    server = start_private(ENVIRONMENT, tmp_path / "models", Features(cache_mb=0), log=tmp_path / "log")
    family = psutil.Process(server.process.pid).children(recursive=True)
    assert any("tritonserver" in process.name() for process in family)
    started = time.monotonic()
    kill(server.process)
    until(lambda: not any(process.is_running() for process in family))
    assert not alive(server.process)
    assert time.monotonic() - started < 10


def test_a_kernel_that_refuses_is_an_error_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's refusal itself is tested with the library; here, that nothing starts in spite of it."""
    message = "not confined: landlock: no such call. Use another kernel."
    refusing = [sys.executable, "-c", f"import sys; print({message!r}); sys.exit(50)"]
    monkeypatch.setattr(confined, "launch_command", lambda *_: refusing)
    with pytest.raises(NotConfined, match="landlock: no such call") as caught:
        start_private(ENVIRONMENT, tmp_path / "models", Features(), log=tmp_path / "log")
    assert caught.value.exit_code == 50
