"""A Python model's process as its host sees it: its pipes, what it uses, what it printed last, and how it ended.

A thread looks at it four times a second, between requests too, and ends it beyond its limits.

Process: Triton's Python backend, as `python_host/process.py`; Shiplift's sandbox.
Python: the server's
Packages: none
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

_LOOK_S, _END_S = 0.25, 5.0
_MIB = 1 << 20
_MOST_LINES = 1000  # characters


@dataclass(frozen=True)
class Use:
    """What a process uses: resident memory in MiB, CPU time so far in seconds, and threads."""

    memory_mb: int = 0
    cpu_s: float = 0.0
    threads: int = 0


class ModelProcess:
    """A process that talks over its standard input and output; what it prints to standard error is passed on.

    It may use `memory_mb`, and have `max_threads` (None: any number).

    Raises:
        OSError: it can't be started.
    """

    def __init__(
        self, command: Sequence[str], variables: Mapping[str, str], *, memory_mb: int, max_threads: int | None
    ) -> None:
        self._memory_mb, self._max_threads = memory_mb, max_threads
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(variables),
            cwd="/",
            bufsize=0,
        )
        to, back = cast("IO[bytes]", self._process.stdin), cast("IO[bytes]", self._process.stdout)
        self.to, self.back = to.fileno(), back.fileno()
        for pipe in (self.to, self.back):
            os.set_blocking(pipe, False)
        self.launched_at = time.monotonic()
        self.ready = False
        self._printed, self._beyond, self._closing = b"", "", threading.Event()
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._pass_on, self._police)]
        for thread in self._threads:
            thread.start()

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    @property
    def printed(self) -> str:
        """The end of what it printed."""
        return self._printed.decode(errors="replace")

    def ending(self) -> str:
        """How it ended; it has closed its pipes, so it is gone or goes now."""
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return "it closed its pipes"
        if self._beyond:
            return self._beyond
        return f"it died of {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def beyond(self) -> str:
        """Which limit it is beyond; empty if none."""
        use = self.use()
        if use.memory_mb > self._memory_mb:
            return f"it used {use.memory_mb} MiB, the limit is {self._memory_mb} MiB"
        if self._max_threads and use.threads > self._max_threads:
            return f"it had {use.threads} threads, the limit is {self._max_threads}"
        return ""

    def use(self) -> Use:
        """What it uses; nothing if it has ended."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
            ticks = int(fields[11]) + int(fields[12])
            return Use(
                int(fields[21]) * os.sysconf("SC_PAGE_SIZE") // _MIB,
                ticks / os.sysconf("SC_CLK_TCK"),
                int(fields[17]),
            )
        return Use()

    def close(self) -> None:
        """Ends it."""
        self._closing.set()
        self._process.kill()
        self._process.wait()
        for thread in self._threads:
            thread.join(_END_S)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe:
                pipe.close()

    def _pass_on(self) -> None:
        pipe = self._process.stderr
        while pipe and (data := pipe.read(4096)):
            self._printed = (self._printed + data)[-_MOST_LINES:]
            with contextlib.suppress(OSError):  # the server's log may be full
                os.write(2, data)

    def _police(self) -> None:
        while not (self._closing.wait(_LOOK_S) or self.ended):
            if why := self.beyond():
                self._beyond = self._beyond or why
                self._process.kill()
