"""Worker processes that score parts, a few at a time: one that ends is replaced, and only its part is lost."""

import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shiplift.runtime.base.text import printable
from shiplift.runtime.host.processes import die_with_parent, own_module
from shiplift.runtime.offline.worker import WorkerJob
from shiplift.runtime.records.offline import InputPart

_MODULE = "shiplift.runtime.offline.worker"
_END_S = 5.0


@dataclass(frozen=True)
class Said:
    """What a worker said about a part: `rows`, `note`, `unreadable`, `failure`, or that it `died`."""

    part: InputPart
    what: dict[str, Any]


@dataclass
class Crew:
    """Workers; `log` gets what their libraries print."""

    job: WorkerJob
    log: Path
    _said: "queue.Queue[Said | None]" = field(default_factory=queue.Queue)
    _parts: "queue.SimpleQueue[InputPart]" = field(default_factory=queue.SimpleQueue)
    _running: "set[subprocess.Popen[str]]" = field(default_factory=set)
    _ended: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def working(self, parts: Sequence[InputPart], workers: int) -> Iterator[Iterator[Said | None]]:
        """Lets workers score the parts, and yields what they say until all are done; None: nothing for a moment."""
        for part in parts:
            self._parts.put(part)
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(min(workers, len(parts)))]
        for thread in threads:
            thread.start()
        try:
            yield self._until_done(len(parts))
        finally:
            self._ended.set()
            for process in list(self._running):
                process.kill()
            for thread in threads:
                thread.join(_END_S)

    def _until_done(self, parts: int) -> Iterator[Said | None]:
        left = parts
        while left:
            try:
                said = self._said.get(timeout=0.5)
            except queue.Empty:
                yield None
                continue
            if said is not None and "rows" not in said.what:
                left -= 1
            yield said

    def _work(self) -> None:
        process: subprocess.Popen[str] | None = None
        while not self._ended.is_set():
            try:
                part = self._parts.get_nowait()
            except queue.Empty:
                break
            process = process or self._start()
            if not self._score(process, part):
                self._running.discard(process)
                process = None
        if process:
            self._end(process)

    def _score(self, process: "subprocess.Popen[str]", part: InputPart) -> bool:
        """Lets a worker score a part; returns whether it is still there."""
        assert process.stdin is not None  # noqa: S101 - both are pipes
        assert process.stdout is not None  # noqa: S101
        try:
            process.stdin.write(part.model_dump_json() + "\n")
            process.stdin.flush()
            for line in process.stdout:
                what = json.loads(line)
                self._said.put(Said(part, what))
                if "rows" not in what:
                    return True
        except (OSError, ValueError):
            process.kill()
        self._said.put(Said(part, {"died": _why(process.wait())}))
        return False

    def _start(self) -> "subprocess.Popen[str]":
        with self.log.open("a") as log:
            process = subprocess.Popen(
                own_module(_MODULE),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - one prctl, bound before the fork
            )
        self._running.add(process)
        assert process.stdin is not None  # noqa: S101
        process.stdin.write(self.job.model_dump_json() + "\n")
        process.stdin.flush()
        return process

    def _end(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdin is not None  # noqa: S101
        try:
            process.stdin.close()
            process.wait(_END_S)
        except (OSError, subprocess.TimeoutExpired):
            process.kill()
        self._running.discard(process)


def _why(code: int) -> str:
    if code >= 0:
        return f"its process ended with code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
    hint = ", as when memory runs out" if -code == signal.SIGKILL else ""
    return printable(f"its process was ended by {name}{hint}")
