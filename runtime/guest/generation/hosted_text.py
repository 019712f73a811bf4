"""A writer whose model is in a confined process of its own. This one holds no model, and goes on whatever happens.

Process: Triton's Python backend, as `hosted_text.py` beside `writer.py`, `python_host`.
Python: the server's
Packages: numpy
"""

import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from python_host.host import Died, ModelFailed, TookTooLong, UsedTooMuch
from python_host.hosted import HostedModel
from writer import ORDERS, PIECES, WriterFailed

_SHARE = 0.5  # of the machine's memory: what the process may use if nothing else is set
_ENDS = ("", "stop", "length")


class HostedWriter:
    """What `writer.Writer` does, asked of the process. A step may take `limit_s`."""

    def __init__(
        self, args: Mapping[str, str], values: Mapping[str, str], folder: Path, environment: Path, limit_s: float
    ) -> None:
        self._limit_s = limit_s
        self._new: dict[int, Mapping[str, Any]] = {}
        self._dropped: list[int] = []
        self._under_way: dict[int, Mapping[str, Any]] = {}  # each request's tensors
        self._hosted = HostedModel(
            args,
            values,
            folder / "python_host",
            environment,
            {
                "model": str(folder),
                "values": dict(values),
                "read": [str(path) for path in (environment, folder, Path(sys.base_prefix).resolve())],
            },
            memory_mb=int(_SHARE * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")) >> 20,
        )

    @property
    def busy(self) -> bool:
        """Whether a step has something to do."""
        return bool(self._new or self._under_way or self._dropped)

    def crashes_of(self, tensors: Mapping[str, Any]) -> int:
        """How often the process died while it ran such a request."""
        return self._hosted.keeper.crashes_of(tensors)

    def start(self, number: int, fields: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
        """Takes a request; `tensors` are what it is known by if the process dies of it."""
        self._new[number] = fields
        self._under_way[number] = tensors

    def drop(self, number: int) -> None:
        """Gives up a request."""
        self._under_way.pop(number, None)
        if self._new.pop(number, None) is None:
            self._dropped.append(number)

    def step(self) -> list[dict[str, Any]]:
        """One step of all requests: pieces, as `writer.Writer.step` gives them.

        Raises:
            WriterFailed: the process died, was ended, or has not started again yet.
        """
        orders = json.dumps({"dropped": self._dropped, "new": list(self._new.items())})
        self._new, self._dropped = {}, []
        try:
            answer = self._hosted.host.ask({ORDERS: np.array([orders], dtype=object)}, self._limit_s)
            return [self._read(piece) for piece in _pieces(answer)]
        except (ModelFailed, BadPiece) as error:
            tensors, self._under_way = list(self._under_way.values()), {}
            if isinstance(error, (Died, TookTooLong)):
                self._hosted.keeper.suspect(tensors)
            late = isinstance(error, TookTooLong)
            setting = "limits.cpu_s" if isinstance(error, UsedTooMuch) else "request_timeout_s"
            why = f"{error} (serving.{setting} in the model's spec)" if late else str(error)
            raise WriterFailed(why, late=late) from error

    def restart(self) -> None:
        """Does nothing: the process is started again after its pause, by the first request."""

    def close(self) -> None:
        """Ends the process."""
        self._hosted.close()

    def _read(self, piece: Mapping[str, Any]) -> dict[str, Any]:
        """A piece as it should be, whoever sent it."""
        try:
            number, ended, text = int(piece["number"]), str(piece.get("ended", "")), str(piece.get("text", ""))
            read = {
                "number": number,
                "text": text,
                "ended": ended if ended in _ENDS else "stop",
                "failed": str(piece.get("failed", ""))[:1000],
                "asked": bool(piece.get("asked")),
                "tokens": min(max(int(piece.get("tokens", 0)), 0), 2**31 - 1),
                "prompt_tokens": min(max(int(piece.get("prompt_tokens", 0)), 0), 2**31 - 1),
            }
            text.encode()
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise BadPiece(f"the model's process sent a piece that makes no sense: {type(error).__name__}") from error
        if read["ended"] or read["failed"]:
            tensors = self._under_way.pop(number, None)
            if tensors is not None:
                self._hosted.keeper.acquit(tensors)
        return read


class BadPiece(Exception):
    """The process answered something else than pieces."""


def _pieces(answer: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    try:
        pieces = json.loads(answer[PIECES].reshape(-1)[0])
    except (KeyError, IndexError, TypeError, ValueError, RecursionError, AttributeError) as error:
        raise BadPiece(f"the model's process answered no pieces: {type(error).__name__}") from error
    if not isinstance(pieces, list):
        raise BadPiece("the model's process answered no pieces")
    return pieces
