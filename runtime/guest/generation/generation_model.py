"""Generates text inside Triton's Python backend, in pieces. All requests share one engine, such as OpenVINO GenAI.

Triton hands over a request and gets it back at once; one thread continues all requests together, one token each per
step. A request ends alone if the model can't take it, if it takes too long, or if its client gives up. A separate
process renders conversations (`python_host`, with `chat.py`), because a chat template is a program by the model's
author.

Process: Triton's Python backend, as `model.py`: `front.py`, `panics.py`, `engine.py`, `generator.py`, `python_host`.
Python: the server's
Packages: numpy
"""

from __future__ import annotations  # so that annotations are not evaluated: Triton's module lacks names of its types

import contextlib
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"
sys.path[:0] = [path for path in os.environ.get("SHIPLIFT_SERVER_SITE", "").split(os.pathsep) if path]

import numpy as np
import triton_python_backend_utils as pb_utils
from engine import GenerationEngine
from front import Ask, BadRequest, GenerationFront, Pieces, conversation
from generator import Generator, New

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
_LOOK_S = 0.1  # how often to check whether a client still listens
_STOPPED = "shiplift_stopped_executions_total"  # the same name as in the other backends
_OPTIONS = ("max_tokens", "temperature", "top_p", "seed", "chat")
_CHAT_S, _CHAT_MB = 2.0, 256  # limits of the process that renders conversations
_FAILED = "the server could not generate"
_MOST = 512  # requests in progress or waiting: Triton's own queue stays empty, since it gets every request back at once


@dataclass
class RunningRequest:
    """A request in progress: where its pieces go, and its state."""

    sender: pb_utils.ResponseSender
    ask: Ask
    pieces: Pieces
    deadline: float
    prompt_tokens: int  # 0 once a piece has reported them
    looked_at: float = 0.0
    tokens: int = 0  # those that no piece has reported yet


class TritonPythonModel:
    """The only instance, and the thread that continues all its requests."""

    def initialize(self, args: Mapping[str, str]) -> None:
        config = json.loads(args["model_config"])
        self.values: dict[str, str] = {
            key: value["string_value"] for key, value in config.get("parameters", {}).items()
        }
        self.folder = Path(args["model_repository"], args["model_version"]).resolve()
        self.front = GenerationFront(
            self.folder,
            max_prompt_tokens=int(self.values["max_prompt_tokens"]),
            max_tokens=int(self.values["max_tokens"]),
        )
        self.sequences = int(self.values["max_sequences"])
        self.limit_s = int(self.values.get("request_timeout_ms", "30000")) / 1000
        self.name, self.metric = args["model_name"], self._metric(args["model_name"])
        self.chats = Chats(self.folder) if (self.folder / "chat.json").exists() else None
        self.generator = self._generator()
        self._warm_up()
        self.incoming: queue.SimpleQueue[RunningRequest | None] = queue.SimpleQueue()
        self.running: dict[int, RunningRequest] = {}
        self.closing = False
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def execute(self, requests: Sequence[pb_utils.InferenceRequest]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            if self.incoming.qsize() + len(self.running) >= _MOST:
                _fail(sender, f"the server has {_MOST} requests in progress or waiting, its limit: try again later")
                continue
            try:
                ask = self.front.read(self._rendered(_fields(request)))
            except (BadRequest, ValueError, Unrendered) as error:
                _fail(sender, str(error))
                continue
            deadline = time.monotonic() + self.limit_s
            self.incoming.put(RunningRequest(sender, ask, Pieces(self.front, ask.stop), deadline, len(ask.ids)))

    def finalize(self) -> None:
        self.closing = True
        self.incoming.put(None)
        self.thread.join(timeout=10)
        if self.chats:
            self.chats.close()

    def _rendered(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields of a request, with the conversation replaced by a prompt."""
        if not fields.pop("chat", False):
            return fields
        if not self.chats:
            raise BadRequest("the model has no chat template: send it a prompt")
        return {**fields, "prompt": self.chats.prompt(fields["prompt"]), "rendered": True}

    def _generator(self) -> Generator:
        front = self.front
        longest = min(front.settings["context"], front.max_prompt_tokens + front.max_tokens)
        return Generator(
            GenerationEngine(self.folder, front.settings, sequences=self.sequences, tokens=longest, options=self.values)
        )

    def _warm_up(self) -> None:
        self.generator.add(self.front.read({"prompt": " a", "max_tokens": min(2, self.front.max_tokens)}))
        while self.generator.busy:
            self.generator.step()

    def _work(self) -> None:
        while not self.closing:
            try:
                self._take()
                self._look()
                if self.generator.busy:
                    self._step()
            except Exception as error:  # no error of one request may end the thread of all
                self._start_again(error)
        self._fail_all("the model is being unloaded")

    def _start_again(self, error: Exception) -> None:
        print(f"shiplift: {self.name}: {type(error).__name__}: {error}", file=sys.stderr)
        self._fail_all(f"{_FAILED}: {str(error)[:200]}")
        try:
            self.generator = self._generator()
        except Exception:
            os._exit(1)  # Triton notices, and restarts this process

    def _fail_all(self, why: str) -> None:
        for answer in self.running.values():
            _fail(answer.sender, why)
        self.running = {}

    def _take(self) -> None:
        """Takes new requests; waits for one if there is nothing else to do."""
        with contextlib.suppress(queue.Empty):
            while not self.closing:
                answer = self.incoming.get(block=not (self.running or self.generator.busy))
                if answer is not None:
                    self._start(answer)

    def _start(self, answer: RunningRequest) -> None:
        try:
            self.running[self.generator.add(answer.ask)] = answer
        except Exception as error:  # it ends only this request; the thread goes on for the others
            _fail(answer.sender, f"{_FAILED}: {str(error)[:200]}")

    def _step(self) -> None:
        for number, new in self.generator.step().items():
            if number in self.running:
                self._tell(number, self.running[number], new)

    def _tell(self, number: int, answer: RunningRequest, new: New) -> None:
        if new.failed:
            del self.running[number]
            _fail(answer.sender, f"{_FAILED}: {new.failed}")
            return
        answer.tokens += len(new.ids)
        text, ended = answer.pieces.add(new.ids), new.ended
        if answer.pieces.stopped:
            ended = "stop"
            self.generator.drop(number)
        elif ended:
            text += answer.pieces.close()
            ended = "stop" if answer.pieces.stopped else ended  # type: ignore[redundant-expr] # closing may find one
        if text or ended:
            _send(answer, text, ended)
        if ended:
            self.running.pop(number, None)

    def _look(self) -> None:
        """Ends the requests that took too long or whose client has gone."""
        now = time.monotonic()
        for number, answer in list(self.running.items()):
            if now > answer.deadline:
                self._drop(number)
                self._count_stopped()
                _fail(
                    answer.sender,
                    f"the request was stopped after {self.limit_s:g} s, its limit "
                    "(serving.request_timeout_s in the model's spec)",
                )
            elif now - answer.looked_at > _LOOK_S:
                answer.looked_at = now
                if answer.sender.is_cancelled():
                    self._drop(number)
                    answer.sender.send(flags=_FINAL)

    def _drop(self, number: int) -> None:
        self.generator.drop(number)
        del self.running[number]

    def _count_stopped(self) -> None:
        if self.metric:
            with contextlib.suppress(pb_utils.TritonModelException):
                self.metric[1].increment(1)

    def _metric(self, model: str) -> tuple[pb_utils.MetricFamily, pb_utils.Metric] | None:
        """The metric and its family, which must live as long; None if the server was started without metrics."""
        with contextlib.suppress(pb_utils.TritonModelException):
            family = pb_utils.MetricFamily(
                name=_STOPPED, description="Executions stopped at their time limit", kind=pb_utils.MetricFamily.COUNTER
            )
            return family, family.Metric(labels={"model": model})
        return None


class Unrendered(Exception):
    """A conversation could not be rendered, and its client is not to blame."""


class Chats:
    """The process that renders conversations. If it had to be killed, another one starts."""

    def __init__(self, folder: Path) -> None:
        from python_host.host import Host  # noqa: PLC0415 - only models with a chat template have it

        environment = Path(os.environ.get("SHIPLIFT_SERVER_SITE", "").split(os.pathsep)[0], "..", "..", "..").resolve()
        if not (environment / "bin" / "python").exists():
            environment = Path(sys.prefix)
        self.host = Host(
            folder / "python_host",
            environment,
            {
                "model": str(folder),
                "memory_mb": _CHAT_MB,
                "read": [str(path) for path in (environment, folder, Path(sys.base_prefix).resolve())],
                "allow_without": os.environ.get("SHIPLIFT_ALLOW_WITHOUT", "").split(),
            },
        )
        self.host.start()

    def prompt(self, body: Any) -> str:
        """The prompt of a conversation.

        Raises:
            BadRequest: it is not a conversation, or the template refuses it.
            Unrendered: the process failed.
        """
        from python_host.host import ModelFailed, Raised  # noqa: PLC0415 - as above

        text = json.dumps(conversation(body))
        try:
            answer = self.host.ask({"conversation": np.array([text], dtype=object)}, _CHAT_S)
            return str(answer["prompt"][0])
        except Raised as error:
            raise BadRequest(f"the model's chat template refuses the conversation: {error}") from error
        except ModelFailed as error:
            raise Unrendered(f"{_FAILED}: its chat template: {error}") from error

    def close(self) -> None:
        """Ends the process."""
        self.host.close()


def _fields(request: pb_utils.InferenceRequest) -> dict[str, Any]:
    """A request's inputs as plain values."""
    arrays = {tensor.name(): tensor.as_numpy().reshape(-1) for tensor in request.inputs()}
    fields = {name: arrays[name][0].item() for name in _OPTIONS if name in arrays}
    return {**fields, "prompt": arrays["prompt"][0], "stop": list(arrays.get("stop", ()))}


def _send(answer: RunningRequest, text: str, ended: str) -> None:
    """Sends a piece, and counts the tokens that no piece before it has."""
    tensors = [
        pb_utils.Tensor("text", np.array([[text.encode()]], dtype=object)),
        pb_utils.Tensor("finish_reason", np.array([[ended.encode()]], dtype=object)),
        pb_utils.Tensor("tokens", np.array([[answer.tokens]], np.int32)),
        pb_utils.Tensor("prompt_tokens", np.array([[answer.prompt_tokens]], np.int32)),
    ]
    answer.tokens = answer.prompt_tokens = 0
    with contextlib.suppress(pb_utils.TritonModelException):  # the client has gone
        answer.sender.send(pb_utils.InferenceResponse(tensors), flags=_FINAL if ended else 0)


def _fail(sender: pb_utils.ResponseSender, why: str) -> None:
    with contextlib.suppress(pb_utils.TritonModelException):
        sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(why)), flags=_FINAL)
