"""What a confined process sends its parent: lines of JSON through a pipe. Hostile code can forge or flood them.

So all of it is treated as data: text is escaped and cut, an error is one of a few classes and carries our own advice,
progress is rate-limited, and the parent stops reading after `MOST_BYTES`.
"""

import ast
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from shiplift.runtime.base import errors
from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.base.progress import progress
from shiplift.runtime.base.text import printable

MOST_BYTES = 16 << 20
_PROGRESS_CHARACTERS, _PROGRESS_EVERY_S = 200, 0.1
_ERROR_CHARACTERS = 600
_RUNTIME = Path(__file__).parents[1]
_ROOMS = ("base", "admission", "model", "precision", "proof")  # what runs in sandboxes
ANSWER_BATCHES = "Make the model answer batches of every size in time: it is served with others than its example's."
# The errors that may come out of a sandbox, each with advice for when it gives none that we know.
_ADVICE: dict[type[ShipliftError], str] = {
    errors.NotAdmitted: "Change the model's files, and log it again.",
    errors.ExportFailed: "Run the model locally to see what it does.",
    errors.DataInvalid: "Compare the data with the model's signature.",
    errors.SandboxLimit: ANSWER_BATCHES,
    errors.QuantizeFailed: "Leave that precision out of the spec's targets.",
    errors.SpecInvalid: "Change the spec.",
    errors.StorageFull: "Free some space, then `shiplift rerun`.",
    errors.MissingTool: "Install it where releases run (`shiplift doctor` lists what is missing).",
}


class Sender:
    """The child's end."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._next = 0.0

    def progress(self, message: str, done: float | None) -> None:
        """Sends a step's progress; drops messages that come too fast to read."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _PROGRESS_EVERY_S
            self._send({"progress": message[:_PROGRESS_CHARACTERS], "done": done})

    def value(self, value: Any) -> None:
        """Sends the result."""
        self._send({"value": value})

    def error(self, error: ShipliftError) -> None:
        """Sends one of our errors."""
        self._send({"error": error.exit_code, "what": error.what, "do": error.do})

    def _send(self, message: dict[str, Any]) -> None:
        line = memoryview(json.dumps(message).encode() + b"\n")
        while line:
            line = line[os.write(self._descriptor, line) :]


class MessageReceiver:
    """The parent's end: takes bytes as they come, reports progress, and keeps the last result or error.

    If `hostile_code` runs in the child, the advice of its errors counts only if it is a sentence of our own code: an
    attacker could have written it. Other advice is told as a part of what the child says.
    """

    def __init__(self, *, hostile_code: bool = True) -> None:
        self._hostile_code = hostile_code
        self.values: list[Any] = []
        self.errors: list[ShipliftError] = []
        self._buffer = bytearray()
        self._total = 0
        self._next = 0.0

    @property
    def too_much(self) -> bool:
        """Whether the child sent more than the parent reads."""
        return self._total > MOST_BYTES

    def take(self, data: bytes) -> None:
        """Takes the next bytes."""
        self._total += len(data)
        if self.too_much:
            self._buffer.clear()
            self.values.clear()
            return
        self._buffer += data
        if b"\n" in data:
            *lines, rest = self._buffer.split(b"\n")
            self._buffer = bytearray(rest)
            for line in lines:
                self._take_line(bytes(line))

    def _take_line(self, line: bytes) -> None:
        message: Any = None
        with suppress(ValueError, RecursionError):
            message = json.loads(line)
        if not isinstance(message, dict):
            return
        if "value" in message:
            self.values = [message["value"]]
        elif "error" in message:
            self.errors = [_error(message, hostile_code=self._hostile_code)]
        elif "progress" in message:
            self._report(message)

    def _report(self, message: dict[str, Any]) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _PROGRESS_EVERY_S / 2  # half of the sender's pause, so that jitter drops no honest message
        done = message.get("done")
        sound = isinstance(done, int | float) and math.isfinite(done)
        share = min(max(float(done), 0.0), 1.0) if sound and done is not None else None
        progress(_line(message["progress"], _PROGRESS_CHARACTERS), share)


class Log:
    """The end of what a child printed."""

    def __init__(self, most_bytes: int = 1 << 20) -> None:
        self._most = most_bytes
        self._kept = bytearray()

    def take(self, data: bytes) -> None:
        """Takes the next bytes and forgets old ones."""
        self._kept += data
        if len(self._kept) > 2 * self._most:
            del self._kept[: -self._most]

    def tail(self, characters: int = 4000) -> str:
        """The last lines, each escaped."""
        text = bytes(self._kept[-4 * characters :]).decode(errors="replace")[-characters:]
        return "".join(f"{printable(line, limit=characters)}\n" for line in text.splitlines())


def _line(text: Any, limit: int) -> str:
    return printable(" ".join(str(text)[:65536].split()), limit=limit)


def _error(message: dict[str, Any], *, hostile_code: bool) -> ShipliftError:
    kinds = [kind for kind in _ADVICE if kind.exit_code == message["error"]]
    kind = kinds[0] if kinds else errors.ExportFailed
    what, do = (_line(message.get(part, ""), _ERROR_CHARACTERS) for part in ("what", "do"))
    if not hostile_code and do:
        return kind(what, do=do)
    if do in _sentences():
        return kind(what, do=do)
    return kind(f"{what} [{do}]" if do else what, do=_ADVICE[kind])


@cache
def _sentences() -> frozenset[str]:
    """Every advice that our code gives in a sandbox: whoever runs there can choose one of them, and write none.

    It is read from the code itself, when an error first needs it: a list beside the code would be one to forget.
    """
    found: set[str] = set()
    for room in _ROOMS:
        for file in sorted((_RUNTIME / room).rglob("*.py")):
            found.update(map(_normal, _advice_in(file)))
    return frozenset(found)


def _advice_in(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.keyword) and node.arg == "do":
            given: ast.expr | None = node.value
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            given = node.value
        else:
            continue
        if isinstance(given, ast.Constant) and isinstance(given.value, str) and given.value.endswith("."):
            yield given.value


def _normal(text: str) -> str:
    return _line(text, _ERROR_CHARACTERS)


Take = Callable[[bytes], None]
