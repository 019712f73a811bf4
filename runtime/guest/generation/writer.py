"""Continues texts: requests in, pieces of text out. It has the front, the engine, and the requests under way.

On the bundled server it runs in the model's own process, as `python_host/served.py`: a message brings new requests and
those to give up, then every request gets one step, and the answer has the pieces. NVIDIA's engines need a GPU and
processes of their own, so there it runs in Triton's Python backend.

Process: the model's own process, as `writer.py` beside `front.py`, `panics.py`, `generator.py`, `engine.py`.
Python: the server's
Packages: numpy
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

ORDERS, PIECES = "orders", "pieces"  # what a message to the process has, and its answer: JSON


class WriterFailed(Exception):
    """All requests under way have failed. `str()` is for their clients; `late`: a step took too long."""

    def __init__(self, what: str, *, late: bool = False) -> None:
        super().__init__(what)
        self.late = late


@dataclass(kw_only=True)
class Writing:
    """A request under way, and the tokens that no piece has reported yet."""

    number: int
    pieces: Any
    prompt_tokens: int
    tokens: int = 0


def load(settings: Mapping[str, Any]) -> "Served":
    """Makes what answers in the hosted process; `settings["model"]` is the folder of the model and its code."""
    sys.path.insert(0, settings["model"])
    return Served(Writer(Path(settings["model"]), settings["values"]))


class Writer:
    """A model and its requests; for one thread. `values` are the parameters of the model's configuration."""

    def __init__(self, folder: Path, values: Mapping[str, str]) -> None:
        self._front_code = import_module("front")  # it lies beside this file, or in the folder that `load` has added
        self._folder, self._values = folder, values
        self._front = self._front_code.GenerationFront(
            folder, max_prompt_tokens=int(values["max_prompt_tokens"]), max_tokens=int(values["max_tokens"])
        )
        self._under_way: dict[int, Writing] = {}
        self._own: dict[int, int] = {}  # the generator's number of a request
        self._refused: list[dict[str, Any]] = []
        self._generator = self._started()

    @property
    def busy(self) -> bool:
        """Whether a step has something to do."""
        return bool(self._refused or self._under_way or self._generator.busy)

    def crashes_of(self, _tensors: Mapping[str, Any]) -> int:
        """How often the model died of such a request: that is not known where its process is this one."""
        return 0

    def start(self, number: int, fields: Mapping[str, Any], _tensors: Mapping[str, Any] | None = None) -> None:
        """Takes a request under a number; what is wrong with it is told by the next step."""
        try:
            ask = self._front.read(fields)
            own = self._generator.add(ask)
        except Exception as error:  # it ends only this request
            asked = isinstance(error, (self._front_code.BadRequest, ValueError))
            self._refused.append({"number": number, "failed": str(error)[:1000], "asked": asked})
            return
        self._own[own] = number
        pieces = self._front_code.Pieces(self._front, ask.stop)
        self._under_way[own] = Writing(number=number, pieces=pieces, prompt_tokens=len(ask.ids))

    def drop(self, number: int) -> None:
        """Gives up a request, if it is under way."""
        for own in [own for own, known in self._own.items() if known == number]:
            self._generator.drop(own)
            self._end(own)

    def step(self) -> list[dict[str, Any]]:
        """One step of all requests: pieces with the request's `number`, and `text`, `ended`, `tokens`, `prompt_tokens`.

        A request that `failed` has an error instead; `asked` says whether its client is to blame.
        """
        told, self._refused = self._refused, []
        if self._generator.busy:
            for own, new in self._generator.step().items():
                if own in self._under_way:
                    told += self._told(own, self._under_way[own], new)
        return told

    def restart(self) -> None:
        """Loads the model again, without requests."""
        self._under_way, self._own, self._refused = {}, {}, []
        self._generator = self._started()

    def close(self) -> None:
        """Does nothing: the process ends with it."""

    def _started(self) -> Any:
        front, values = self._front, self._values
        longest = min(front.settings["context"], front.max_prompt_tokens + front.max_tokens)
        engine = import_module("engine").GenerationEngine(
            self._folder, front.settings, sequences=int(values["max_sequences"]), tokens=longest, options=values
        )
        generator = import_module("generator").Generator(engine)
        generator.add(front.read({"prompt": " a", "max_tokens": min(2, front.max_tokens)}))
        while generator.busy:
            generator.step()
        return generator

    def _told(self, own: int, writing: Writing, new: Any) -> list[dict[str, Any]]:
        if new.failed:
            self._end(own)
            return [{"number": writing.number, "failed": new.failed, "asked": False}]
        writing.tokens += len(new.ids)
        text, ended = writing.pieces.add(new.ids), new.ended
        if writing.pieces.stopped:
            ended = "stop"
            self._generator.drop(own)
        elif ended:
            text += writing.pieces.close()
            ended = "stop" if writing.pieces.stopped else ended
        if ended:
            self._end(own)
        return [self._piece(writing, text, ended)] if text or ended else []

    def _piece(self, writing: Writing, text: str, ended: str) -> dict[str, Any]:
        piece = {
            "number": writing.number,
            "text": text,
            "ended": ended,
            "tokens": writing.tokens,
            "prompt_tokens": writing.prompt_tokens,
        }
        writing.tokens = writing.prompt_tokens = 0
        return piece

    def _end(self, own: int) -> None:
        self._own.pop(own, None)
        self._under_way.pop(own, None)


class Served:
    """A writer behind messages."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def answer(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Does what the orders say, and one step of all requests; answers the pieces."""
        import numpy as np  # noqa: PLC0415 - from the environment

        orders = json.loads(arrays[ORDERS][0])
        for number in orders["dropped"]:
            self._writer.drop(number)
        for number, fields in orders["new"]:
            self._writer.start(number, fields)
        return {PIECES: np.array([json.dumps(self._writer.step())], dtype=object)}
