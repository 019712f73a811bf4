"""The real sandbox. `timeit:timeit` runs any statement given as text, so it stands for an author's hostile code."""

import contextlib
import ctypes
import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from shiplift.runtime.base.errors import ExportFailed, NotAdmitted, SandboxLimit, ShipliftError
from shiplift.runtime.base.progress import listening
from shiplift.runtime.confinement import sandbox
from shiplift.runtime.confinement.policy import Entry, SandboxLimits
from shiplift.runtime.confinement.sandbox import Sandbox
from shiplift.runtime.host import interpreter
from shiplift.runtime.records.model import Isolation

ABI = int(ctypes.CDLL(None).syscall(444, None, 0, 1))
LIMITS = SandboxLimits(memory_mb=512, timeout_s=30)


def run_sandboxed(
    entry: str, arguments: dict[str, Any], *, read: list[Path] | tuple[Path, ...], work: Path, limits: SandboxLimits
) -> tuple[dict[str, Any], Isolation]:
    """One run in a sandbox of its own."""
    with contextlib.closing(Sandbox(Entry(entry), read=read, work=work)) as box:
        return box.run(arguments, limits)


class Cell:
    """A sandbox with a work folder; `run` gives what the code wrote to `output`, `refused` its last words."""

    def __init__(self, folder: Path) -> None:
        self.work = folder / "work"

    def run(self, code: str, *, read: tuple[Path, ...] = (), limits: SandboxLimits = LIMITS) -> str:
        self.isolation: Isolation
        _, self.isolation = run_sandboxed(
            "timeit:timeit", {"stmt": code, "number": 1}, read=read, work=self.work, limits=limits
        )
        output = self.work / "output"
        return output.read_text() if output.is_file() else ""

    def refused(self, code: str, **how: Any) -> str:
        with pytest.raises(ShipliftError) as error:
            self.run(code, **how)
        assert error.type is ExportFailed
        return error.value.what


@pytest.fixture
def cell(tmp_path: Path) -> Cell:
    return Cell(tmp_path)


def test_a_function_runs_and_gives_its_result(tmp_path: Path) -> None:
    value: Any
    value, isolation = run_sandboxed("os:getcwd", {}, read=[], work=tmp_path / "work", limits=LIMITS)
    assert value == str(tmp_path / "work")
    assert (isolation.memory_limit_mb, isolation.timeout_s) == (512, 30)


def test_the_code_sees_none_of_our_environment(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "MLFLOW_TRACKING_PASSWORD", "HF_TOKEN", "PYTHONPATH", "LD_PRELOAD"):
        monkeypatch.setenv(name, "secret")
    output = json.loads(cell.run("import json, os; open('output', 'w').write(json.dumps(dict(os.environ)))"))
    assert "secret" not in output.values()
    assert set(output) <= {
        "PATH",
        "LANG",
        "PYTHONDONTWRITEBYTECODE",
        "MLFLOW_DISABLE_TELEMETRY",
        "DO_NOT_TRACK",
        "PROMPTFOO_DISABLE_TELEMETRY",
        "GIT_PYTHON_REFRESH",
        "HOME",
        "TMPDIR",
        "MPLCONFIGDIR",
        "TORCHINDUCTOR_CACHE_DIR",
        "LC_CTYPE",
        "OMP_WAIT_POLICY",
        "GRPC_ENABLE_FORK_SUPPORT",  # set where it is imported
    }
    assert output["HOME"] == output["TMPDIR"] == str(cell.work)


@dataclass(frozen=True)
class Tried:
    """What hostile code tried, each with the name of the exception it met, or `done`."""

    outcomes: dict[str, str]
    outside: Path
    heard: bool
    production: int


ATTEMPTS = {
    "read passwords": "open('/etc/shadow')",
    "read accounts": "open('/etc/passwd')",
    "list root": "os.listdir('/root')",
    "list homes": "os.listdir('/home')",
    "list temporary files": "os.listdir('/tmp')",
    "list var": "os.listdir('/var')",
    "read our environment": "open(f'/proc/{os.getppid()}/environ').read()",
    "read the parent's environment": "open(f'/proc/{OURS}/environ').read()",
    "read our memory": "open(f'/proc/{OURS}/mem', 'rb')",
    "read a file beside the model": "open(OUTSIDE + '/secret')",
    "read it through a link": "os.symlink(OUTSIDE + '/secret', 'link'); open('link')",
    "read it from a child": "subprocess.run(['/bin/cat', OUTSIDE + '/secret'], check=True)",
    "write beside the model": "open(OUTSIDE + '/new', 'w')",
    "write into the model": "open(OUTSIDE + '/model/new', 'w')",
    "remove the model": "os.remove(OUTSIDE + '/model/weights')",
    "write into our code": "open(OURS_AT + '/evil.py', 'w')",
    "write temporary files": "open('/tmp/evil', 'w')",
    "mount": "assert ctypes.CDLL(None).mount(b'none', b'/usr', b'tmpfs', 0, None) == 0",
    "connect": "socket.create_connection(('127.0.0.1', TCP), 5)",
    "connect far away": "socket.create_connection(('192.0.2.1', 80), 5)",
    "send a datagram": "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', UDP))",
    "use an abstract socket": "socket.socket(socket.AF_UNIX).connect(ABSTRACT)",
    "use a socket in the file system": "socket.socket(socket.AF_UNIX).connect(OUTSIDE + '/socket')",
    "use a ring": "assert ctypes.CDLL(None).syscall(425, 8, ctypes.create_string_buffer(120)) >= 0",
    "trace a child": "assert ctypes.CDLL(None).ptrace(16, os.fork() or os._exit(0), 0, 0) == 0",
    "look a name up": "socket.getaddrinfo('example.org', 80)",
    "ask whether we live": "os.kill(OURS, 0)",
    "ask its parent": "os.kill(os.getppid(), 0)",
    "stop production": "os.kill(PRODUCTION, 19)",
    "end production": "os.kill(PRODUCTION, 15)",
    "kill production": "os.kill(PRODUCTION, 9)",
}
ALLOWED = {
    "read the model": "assert open(OUTSIDE + '/model/weights').read() == 'weights'",
    "write its work": "open('own', 'w').write('x')",
    "write temporary files of its own": "tempfile.mkstemp()",
    "start a child": "subprocess.run([sys.executable, '-c', 'import json'], check=True)",
    "signal its child": "subprocess.Popen(['/bin/sleep', '60']).kill()",
    "use threads": "threading.Thread(target=print).start()",
    "read its libraries": "import xml.dom.minidom",
}
SIGNALS = {"ask whether we live", "ask its parent", "stop production", "end production", "kill production"}


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Tried:
    """Tries everything once, beside servers and a process that stand for ours."""
    outside, work = tmp_path_factory.mktemp("outside"), tmp_path_factory.mktemp("cell") / "work"
    (outside / "model").mkdir()
    (outside / "secret").write_text("secret")
    (outside / "model" / "weights").write_text("weights")
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(type=socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX) as abstract,
        socket.socket(socket.AF_UNIX) as path,
        subprocess.Popen(["sleep", "600"]) as production,
    ):
        udp.bind(("127.0.0.1", 0))
        path.bind(str(outside / "socket"))
        path.listen()
        abstract.bind(f"\0shiplift-{os.getpid()}")
        abstract.listen()
        code = f"""
import ctypes, json, os, socket, subprocess, sys, tempfile, threading
OUTSIDE, OURS_AT = {str(outside)!r}, {str(Path(sandbox.__file__).parent)!r}
OURS, PRODUCTION = {os.getpid()}, {production.pid}
TCP, UDP, ABSTRACT = {tcp.getsockname()[1]}, {udp.getsockname()[1]}, {abstract.getsockname()!r}
outcomes = {{}}
for name, attempt in {ATTEMPTS | ALLOWED!r}.items():
    try:
        exec(attempt)
    except Exception as error:
        outcomes[name] = type(error).__name__
    else:
        outcomes[name] = "done"
open("output", "w").write(json.dumps(outcomes))
"""
        try:
            run_sandboxed(
                "timeit:timeit", {"stmt": code, "number": 1}, read=[outside / "model"], work=work, limits=LIMITS
            )
            heard = _heard(tcp) or _heard(abstract) or _heard(udp) or _heard(path)
            alive = production.pid if psutil.Process(production.pid).status() == psutil.STATUS_SLEEPING else 0
        finally:
            production.kill()
    return Tried(json.loads((work / "output").read_text()), outside, heard, alive)


def _heard(server: socket.socket) -> bool:
    server.settimeout(0)
    try:
        server.recv(1) if server.type == socket.SOCK_DGRAM else server.accept()
    except BlockingIOError:
        return False
    return True


@pytest.mark.parametrize("attempt", sorted(ATTEMPTS))
def test_hostile_code_cannot(tried: Tried, attempt: str) -> None:
    if attempt in SIGNALS and ABI < 6:
        pytest.skip("needs Landlock ABI 6 (Linux 6.12)")
    assert tried.outcomes[attempt] != "done"


@pytest.mark.parametrize("need", sorted(ALLOWED))
def test_honest_code_can(tried: Tried, need: str) -> None:
    assert tried.outcomes[need] == "done"


def test_nobody_outside_noticed_anything(tried: Tried) -> None:
    assert not tried.heard
    assert tried.production
    left = sorted(path.relative_to(tried.outside).as_posix() for path in tried.outside.rglob("*") if path.is_file())
    assert left == ["model/weights", "secret"]
    assert not Path(sandbox.__file__).with_name("evil.py").exists()


HIJACK = """
import builtins, ctypes, os, threading
builtins.output, builtins.done, libc = [], threading.Event(), ctypes.CDLL(None)

@ctypes.CFUNCTYPE(None, ctypes.c_int)
def handler(number):
    try:
        output.append(open("/etc/passwd").read(4))
    except BaseException as error:
        output.append(type(error).__name__)
    done.set()

libc.signal(10, handler)
others = [int(task) for task in os.listdir("/proc/self/task") if int(task) != os.getpid()]
for other in others:
    libc.syscall(234, os.getpid(), other, 10)  # tgkill(2)
    done.wait(5)
open("output", "w").write(f"{len(others)} {output}")
"""


def test_the_code_finds_no_thread_that_is_freer_than_itself(cell: Cell) -> None:
    """numpy has started threads before the code runs; a signal makes each of them try to read what it must not."""
    run_sandboxed("numpy.testing:measure", {"code_str": HIJACK}, read=[], work=cell.work, limits=LIMITS)
    count, _, output = (cell.work / "output").read_text().partition(" ")
    assert int(count) >= 1
    assert set(json.loads(output.replace("'", '"'))) == {"PermissionError"}


def running(marker: str) -> list[int]:
    """The processes of this machine with `marker` on their command line."""
    return [process.pid for process in psutil.process_iter(["cmdline"]) if marker in (process.info["cmdline"] or ())]


DAEMONS = """
import os, subprocess
for forks in (1, 2, 3):
    pid = os.fork()
    if pid == 0:
        for _ in range(forks):
            os.setsid() if os.getpid() != os.getpgrp() else None
            if os.fork():
                os._exit(0)
        os.execv("/bin/sleep", ["/bin/sleep", MARKER])
    os.waitpid(pid, 0)
subprocess.Popen(["/bin/sleep", MARKER], start_new_session=True)
import time; time.sleep(0.5)
"""


def test_what_the_code_starts_ends_with_it(cell: Cell) -> None:
    """Daemons too: forked several times, in sessions of their own."""
    marker = f"6{os.getpid()}"
    cell.run(DAEMONS.replace("MARKER", repr(marker)))
    assert running(marker) == []


def test_the_sandbox_ends_with_its_parent_however_that_ends(tmp_path: Path) -> None:
    marker = f"7{os.getpid()}"
    code = f"import subprocess; subprocess.run(['/bin/sleep', '{marker}'], start_new_session=True)"
    call = f"""
from pathlib import Path
from shiplift.runtime.confinement.policy import Entry, SandboxLimits
from shiplift.runtime.confinement.sandbox import Sandbox
box = Sandbox(Entry("timeit:timeit"), read=[], work=Path({str(tmp_path)!r}))
box.run({{"stmt": {code!r}, "number": 1}}, SandboxLimits(memory_mb=512, timeout_s=60))
"""
    with subprocess.Popen([sys.executable, "-c", call]) as parent:
        while not running(marker):
            assert parent.poll() is None
        family = psutil.Process(parent.pid).children(recursive=True)
        assert len(family) == 4  # the outer process, the init, the worker, and what it started
        parent.kill()
    _, left = psutil.wait_procs(family, timeout=120)
    assert left == []


def test_code_that_needs_too_much_memory_is_ended(cell: Cell) -> None:
    code = "x = b'x' * (300 << 20)\nimport threading; threading.Event().wait()"
    with pytest.raises(SandboxLimit, match=r"used \d+ MiB, the limit is 200 MiB") as error:
        cell.run(code, limits=SandboxLimits(memory_mb=200, timeout_s=30))
    assert "export.memory_mb" in error.value.do


def test_memory_of_children_counts_too(cell: Cell) -> None:
    inner = "x = b'x' * (150 << 20); input()"
    start = f"subprocess.Popen([sys.executable, '-c', {inner!r}], stdin=subprocess.PIPE)"
    code = f"import subprocess, sys\nboth = [{start} for _ in range(2)]\nboth[0].wait()"
    with pytest.raises(SandboxLimit, match="the limit is 200 MiB"):
        cell.run(code, limits=SandboxLimits(memory_mb=200, timeout_s=30))


def test_an_allocation_beyond_the_limit_fails_at_once(cell: Cell) -> None:
    with pytest.raises(SandboxLimit, match="needed more than 200 MiB"):
        cell.run("b'x' * (4 << 30)", limits=SandboxLimits(memory_mb=200, timeout_s=30))


def test_code_that_takes_too_long_is_ended(cell: Cell) -> None:
    with pytest.raises(SandboxLimit, match="took over 1 s") as error:
        cell.run("import threading; threading.Event().wait()", limits=SandboxLimits(memory_mb=512, timeout_s=1))
    assert "export.timeout_s" in error.value.do


def test_what_a_library_does_at_exit_takes_no_time_and_loses_no_output(cell: Cell) -> None:
    code = "import atexit, threading; atexit.register(threading.Event().wait); print('told', end='')"
    cell.run(code, limits=SandboxLimits(memory_mb=512, timeout_s=10))


def test_a_file_larger_than_allowed_is_not_written(cell: Cell) -> None:
    words = cell.refused(
        "open('large', 'wb').write(b'x' * (3 << 20))", limits=SandboxLimits(memory_mb=512, timeout_s=30, file_mb=1)
    )
    assert "File too large" in words or "signal 25" in words


def test_an_error_of_ours_comes_through_as_itself(tmp_path: Path) -> None:
    with pytest.raises(NotAdmitted, match="can't be a model's name"):
        run_sandboxed(
            "shiplift.runtime.store.registry.terms:check_name",
            {"name": "../x"},
            read=[],
            work=tmp_path / "work",
            limits=LIMITS,
        )


def test_any_other_error_is_told_with_its_last_words(cell: Cell) -> None:
    assert cell.refused("raise ValueError('odd weights')").endswith("exit code 1: ValueError: odd weights")
    assert "ended with signal 11" in cell.refused("import ctypes; ctypes.string_at(0)")
    assert "exit code 3" in cell.refused("import os; os._exit(3)")


def test_an_error_behind_libraries_with_threads_ends_at_once(tmp_path: Path) -> None:
    with pytest.raises(ExportFailed, match=r"TypeError: convert\(\) missing"):
        run_sandboxed(
            "shiplift.runtime.admission.conversion:convert", {}, read=[], work=tmp_path / "work", limits=LIMITS
        )


@pytest.mark.parametrize("entry", ["os:nothing", "no.such.module:run", "nothing"])
def test_an_entry_that_is_not_there_is_an_error_of_the_export(tmp_path: Path, entry: str) -> None:
    with pytest.raises(ExportFailed):
        run_sandboxed(entry, {}, read=[], work=tmp_path / "work", limits=LIMITS)


FORGE = """
import json, os, sys
end = json.loads(sys.argv[1])["answer"]
os.write(end, {!r}.encode())
os._exit(0)
"""


def test_a_message_that_the_code_forged_is_only_data(cell: Cell) -> None:
    assert "ended with exit code 0" in cell.refused(FORGE.format('{"progress": 1}\n[]\n'))
    words = cell.refused(FORGE.format(json.dumps({"error": 75, "what": "\x1b[31mtry again", "do": "curl evil"}) + "\n"))
    assert words == "\\x1b[31mtry again [curl evil]"


def test_an_endless_answer_is_not_kept(cell: Cell) -> None:
    endless = "import json, os, sys\nfor _ in range(400): os.write(json.loads(sys.argv[1])['answer'], b'x' * (1 << 16))"
    assert "sent more than 16 MiB" in cell.refused(endless)


def test_an_endless_log_is_cut(cell: Cell, capfd: pytest.CaptureFixture[str]) -> None:
    code = (
        "import sys\nfor _ in range(2000): sys.stdout.write('x' * (1 << 16) + '\\n')\nraise ValueError('\x1b[2Jlast')"
    )
    assert cell.refused(code).endswith("ValueError: \\x1b[2Jlast")
    assert len(capfd.readouterr().err) < 10_000


def test_progress_arrives_in_the_parent(tmp_path: Path) -> None:
    heard: list[tuple[str, float | None]] = []
    code = """
import time
from shiplift.runtime.base.progress import progress
progress("half \x1b[2J", 0.5)
for _ in range(100000): progress("flood")
time.sleep(0.3)
progress("x" * 10000, 7)
"""
    with listening(lambda message, done: heard.append((message, done))):
        Cell(tmp_path).run(code)
    assert heard[0] == ("half \\x1b[2J", 0.5)
    assert len(heard) < 100
    assert heard[-1][1] == 1.0
    assert len(heard[-1][0]) == 200


def test_what_a_listener_raises_ends_the_child(tmp_path: Path) -> None:
    marker = f"5{os.getpid()}"

    def cancel(_message: str, _done: float | None) -> None:
        raise KeyboardInterrupt

    code = f"""
import subprocess
from shiplift.runtime.base.progress import progress
subprocess.Popen(["/bin/sleep", "{marker}"])
progress("now")
import threading; threading.Event().wait()
"""
    with pytest.raises(KeyboardInterrupt), listening(cancel):
        Cell(tmp_path).run(code)
    assert running(marker) == []


def test_a_result_from_an_earlier_run_is_not_taken_for_this_one(cell: Cell) -> None:
    assert cell.run("pass") == ""
    assert "exit code 0" in cell.refused("import os; os._exit(0)")


def test_the_record_says_what_held(cell: Cell) -> None:
    cell.run("pass")
    held = cell.isolation
    assert (held.network, held.processes, held.files, held.calls) == ("namespace", "namespace", "landlock", "seccomp")


def test_packages_that_a_pth_file_names_are_readable_and_a_source_tree_it_names_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages, source = tmp_path / "lib" / "site-packages", tmp_path / "project"
    monkeypatch.setattr(sys, "path", [*sys.path, str(packages), str(source)])
    readable = interpreter.python_paths.__wrapped__()
    assert packages in readable
    assert source not in readable


def test_a_sandbox_that_is_closed_while_it_starts_is_gone_at_once(tmp_path: Path) -> None:
    for number in range(5):
        box = Sandbox(Entry("timeit:timeit"), read=[], work=tmp_path / str(number))
        before = time.monotonic()
        box.close()
        assert time.monotonic() - before < 60


def test_a_panic_of_a_library_is_the_model_s_failure(tmp_path: Path) -> None:
    code = "raise type('PanicException', (BaseException,), {})('unwrapped a None')"
    box = Sandbox(Entry("timeit:timeit"), read=[], work=tmp_path / "work")
    limits = SandboxLimits(memory_mb=512, timeout_s=30)
    with contextlib.closing(box), pytest.raises(ExportFailed, match=r"a library .* panicked: unwrapped a None"):
        box.run({"stmt": code, "number": 1}, limits)
