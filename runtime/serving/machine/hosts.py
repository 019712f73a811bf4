"""Models whose process in Triton's Python backend has ended: Triton starts none again, and calls the model ready.

Every instance of such a model has one process, called a stub. One that was killed stays a zombie of the server, which
tells the signal. Each end is noted in the home, and the model is loaded again after a pause that grows from one end to
the next (`pauses`).
"""

import contextlib
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil
from google.protobuf.text_format import ParseError
from pydantic import TypeAdapter, ValidationError

from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.serving.machine.loading import attempts
from shiplift.runtime.serving.machine.pauses import pause_s
from shiplift.runtime.serving.machine.quarantine import HEALTHY_S, Crashed
from shiplift.runtime.serving.triton.config import parse
from shiplift.runtime.serving.triton.loads import LOADING, READY

PART = "process in Triton's Python backend"
_STUB = "triton_python_b"  # as the kernel cuts its name
_CRASHES = TypeAdapter(dict[str, Crashed])  # by the model's name in the server


class Hosts:
    """Looks at the stubs of the server that was started as `pid`, over production's `repository`."""

    def __init__(self, pid: int, repository: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._pid, self._repository, self._clock = pid, repository, clock
        self._running: dict[int, str] = {}  # the models of the processes that ran at the last look, by pid
        self._down: frozenset[str] = frozenset()
        self._known: dict[Path, tuple[int, int]] = {}  # by configuration: when it was written, and its processes

    def look(self, states: Callable[[], Mapping[str, set[str]]]) -> dict[str, Crashed]:
        """The models that lack a process, by their names in the server. What is new is noted in the home.

        `states` asks the server for the states of each model's versions. That happens only if something is missing,
        and the processes are counted again then: a model that was just loaded has them all before it is ready. A model
        that is loaded again lacks a process until that has ended.
        """
        whys = self._ended()
        lacking = self._lacking()
        if lacking or self._down:
            now = states()
            # The processes of a load that is under way are no reason to call a model whole: the load may fail.
            loading = {name for name in self._down if LOADING in now.get(name, ())}
            lacking = {name for name in self._lacking() if _settled(now.get(name, set()))} - self._failing() | loading
        known = crashes(self._repository.parent)
        if new := lacking - self._down:
            at = self._clock()
            known |= {name: _after(known.get(name), name, whys.get(name, "ended"), at) for name in new}
            installed = {folder.name for folder in self._repository.iterdir()}
            kept = {name: crash for name, crash in known.items() if name in installed}
            write_atomically(_file(self._repository.parent), _CRASHES.dump_json(kept))
        self._down = frozenset(lacking)
        return {name: known[name] for name in lacking if name in known}

    def _failing(self) -> set[str]:
        """The models whose last load failed, perhaps for one of their versions: they never had all processes."""
        tried = attempts(self._repository.parent)
        return {name for name, each in tried.items() if each.failures} - self._down

    def _lacking(self) -> set[str]:
        """The models with fewer processes than instances."""
        self._running = dict(running(self._pid))
        count = Counter(self._running.values())
        return {name for name, processes in self._expected() if count[name] < processes}

    def _ended(self) -> dict[str, str]:
        """How those processes ended that ran at the last look and are zombies now, by model."""
        return {model: why for pid, model in self._running.items() if (why := _end_of(pid))}

    def _expected(self) -> Iterator[tuple[str, int]]:
        """How many processes each model of the repository has once it is loaded."""
        for file in self._repository.glob("*/config.pbtxt"):
            with contextlib.suppress(OSError, ParseError):
                written = file.stat().st_mtime_ns
                if self._known.get(file, (0, 0))[0] != written:
                    self._known[file] = written, _processes(file.read_text())
                yield file.parent.name, self._known[file][1]


def running(pid: int) -> Iterator[tuple[int, str]]:
    """The stubs that run below a server's process, by pid, each with its model: the path of its model.py tells."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error, IndexError):
                if child.name()[:15] == _STUB and child.status() != psutil.STATUS_ZOMBIE:
                    yield child.pid, Path(child.cmdline()[1]).parts[-3]


def crashes(production: Path) -> dict[str, Crashed]:
    """The ends in a row of each model's processes, by its name in the server; `production` is the home's folder."""
    try:
        return _CRASHES.validate_json(_file(production).read_bytes())
    except (FileNotFoundError, ValidationError):  # none, or truncated by a crash of the machine
        return {}


def _processes(text: str) -> int:
    """How many processes Triton starts for a model with this configuration; 0 outside the Python backend."""
    config = parse(text)
    if config.backend != "python":
        return 0
    versions = len(config.version_policy.specific.versions) or 1
    return versions * (sum(max(group.count, 1) for group in config.instance_group) or 1)


def _settled(states: set[str]) -> bool:
    """Whether a model with these states of its versions is neither loaded nor unloaded just now."""
    return READY in states and not states & {LOADING, "UNLOADING"}


def _after(before: Crashed | None, model: str, why: str, now: float) -> Crashed:
    in_a_row = before.crashes if before and now - before.at <= HEALTHY_S else 0
    pause = pause_s(in_a_row + 1)
    return Crashed(model=model, version=0, crashes=in_a_row + 1, at=now, pause_s=pause, why=why, part=PART)


def _end_of(pid: int) -> str:
    """How a zombie ended; empty if it runs, or is gone."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    if state != "Z":
        return ""
    code = int(rest[-1])  # as waitpid(2) gives it; 0 also where the kernel does not tell
    with contextlib.suppress(ValueError):
        return f"died of {signal.Signals(code & 0x7F).name}"
    return f"ended with exit code {code >> 8}"


def _file(production: Path) -> Path:
    return production / "hosts.json"
