"""Generates text inside Triton's Python backend, in pieces. All requests share one engine, such as OpenVINO GenAI.

Triton hands over a request and gets it back at once; one thread continues all requests together, one token each per
step. A request ends alone if the model can't take it, if it takes too long, or if its client gives up. On the bundled
server the model is in a confined process of its own (`hosted_text.py`), which has limits, and is started again after
a pause when it died; elsewhere it is in this one (`writer.py`). Another process renders conversations (`chat.py`),
because a chat template is a program by the model's author.

Process: Triton's Python backend, as `model.py`: `front.py`, `panics.py`, `writer.py`, `hosted_text.py`, `python_host`.
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
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"
sys.path[:0] = [path for path in os.environ.get("SHIPLIFT_SERVER_SITE", "").split(os.pathsep) if path]

import numpy as np
import triton_python_backend_utils as pb_utils
from front import BadRequest, conversation, text_in
from writer import Writer, WriterFailed

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
_LOOK_S = 0.1  # how often to check whether a client still listens
_STOPPED = "shiplift_stopped_executions_total"  # the same name as in the other backends
_OPTIONS = ("max_tokens", "temperature", "top_p", "seed", "chat")
_CHAT_S, _CHAT_MB = 2.0, 256  # limits of the process that renders conversations
_FAILED = "the server could not generate"
_MOST = 512  # requests in progress or waiting: Triton's own queue stays empty, since it gets every request back at once
_GUILTY = 2  # times that the model's process died of a request before it is refused
_REFUSED = "the model's worker died each time it ran this request: it is refused for an hour"


@dataclass
class RunningRequest:
    """A request in progress: what was asked, where its pieces go, and its state. `tensors` are what it is known by."""

    sender: pb_utils.ResponseSender
    fields: dict[str, Any]
    tensors: dict[str, Any]
    deadline: float
    looked_at: float = 0.0


class TritonPythonModel:
    """The only instance, and the thread that continues all its requests."""

    def initialize(self, args: Mapping[str, str]) -> None:
        config = json.loads(args["model_config"])
        self.values: dict[str, str] = {
            key: value["string_value"] for key, value in config.get("parameters", {}).items()
        }
        self.folder = Path(args["model_repository"], args["model_version"]).resolve()
        self.limit_s = int(self.values.get("request_timeout_ms", "30000")) / 1000
        self.name, self.metric = args["model_name"], self._metric(args["model_name"])
        self.chats = Chats(self.folder) if (self.folder / "chat.json").exists() else None
        self.writer = self._writer(args)
        self.incoming: queue.SimpleQueue[RunningRequest | None] = queue.SimpleQueue()
        self.waiting: deque[RunningRequest] = deque()
        self.running: dict[int, RunningRequest] = {}
        self.next, self.alone, self.closing = 0, False, False
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def execute(self, requests: Sequence[pb_utils.InferenceRequest]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            if self.incoming.qsize() + len(self.waiting) + len(self.running) >= _MOST:
                _fail(sender, f"the server has {_MOST} requests in progress or waiting, its limit: try again later")
                continue
            try:
                fields = _read(self._rendered(_fields(request)))
            except (BadRequest, ValueError, Unrendered) as error:
                _fail(sender, str(error))
                continue
            tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            if self.writer.crashes_of(tensors) >= _GUILTY:
                _fail(sender, _REFUSED)
                continue
            self.incoming.put(RunningRequest(sender, fields, tensors, time.monotonic() + self.limit_s))

    def finalize(self) -> None:
        self.closing = True
        self.incoming.put(None)
        self.thread.join(timeout=10)
        self.writer.close()
        if self.chats:
            self.chats.close()

    def _writer(self, args: Mapping[str, str]) -> Any:
        if not (self.folder / "hosted_text.py").exists():
            return Writer(self.folder, self.values)
        from hosted_text import HostedWriter  # noqa: PLC0415 - only packages for the bundled server have it

        return HostedWriter(args, self.values, self.folder, _environment(), self.limit_s)

    def _rendered(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields of a request, with the conversation replaced by a prompt."""
        if not fields.pop("chat", False):
            return fields
        if not self.chats:
            raise BadRequest("the model has no chat template: send it a prompt")
        return {**fields, "prompt": self.chats.prompt(fields["prompt"]), "rendered": True}

    def _work(self) -> None:
        while not self.closing:
            try:
                self._take()
                self._admit()
                self._look()
                if self.writer.busy:
                    self._step()
            except WriterFailed as error:
                self._lost(error)
            except Exception as error:  # no error of one request may end the thread of all
                self._start_again(error)
        self._fail_all("the model is being unloaded")

    def _lost(self, error: WriterFailed) -> None:
        """Fails the requests under way; those that wait go on when the model's process is back."""
        print(f"shiplift: {self.name}: {error}", file=sys.stderr)
        if error.late:
            self._count_stopped()
        self._fail_all(str(error))

    def _start_again(self, error: Exception) -> None:
        print(f"shiplift: {self.name}: {type(error).__name__}: {error}", file=sys.stderr)
        self._fail_all(f"{_FAILED}: {str(error)[:200]}")
        try:
            self.writer.restart()
        except Exception:
            os._exit(1)  # Triton notices, and restarts this process

    def _fail_all(self, why: str) -> None:
        for answer in self.running.values():
            _fail(answer.sender, why)
        self.running, self.alone = {}, False

    def _take(self) -> None:
        """Takes new requests; waits for one if there is nothing else to do."""
        with contextlib.suppress(queue.Empty):
            while not self.closing:
                idle = not (self.running or self.waiting or self.writer.busy)
                answer = self.incoming.get(block=idle)
                if answer is not None:
                    self.waiting.append(answer)

    def _admit(self) -> None:
        """Starts what waits. A request during which the process died runs alone: that shows whether it is guilty."""
        while self.waiting and not self.alone:
            crashes = self.writer.crashes_of(self.waiting[0].tensors)
            if crashes and self.running and crashes < _GUILTY:
                return
            answer = self.waiting.popleft()
            if crashes >= _GUILTY:
                _fail(answer.sender, _REFUSED)
                continue
            number, self.next, self.alone = self.next, self.next + 1, bool(crashes)
            self.running[number] = answer
            self.writer.start(number, answer.fields, answer.tensors)

    def _step(self) -> None:
        for piece in self.writer.step():
            if piece["number"] in self.running:
                self._tell(piece["number"], self.running[piece["number"]], piece)

    def _tell(self, number: int, answer: RunningRequest, piece: Mapping[str, Any]) -> None:
        if piece.get("failed"):
            self._done(number)
            _fail(answer.sender, piece["failed"] if piece.get("asked") else f"{_FAILED}: {piece['failed']}")
            return
        _send(answer.sender, piece)
        if piece["ended"]:
            self._done(number)

    def _look(self) -> None:
        """Ends the requests that took too long or whose client has gone."""
        now = time.monotonic()
        for number, answer in list(self.running.items()):
            if now > answer.deadline:
                self._drop(number)
                self._late(answer)
            elif now - answer.looked_at > _LOOK_S:
                answer.looked_at = now
                if answer.sender.is_cancelled():
                    self._drop(number)
                    answer.sender.send(flags=_FINAL)
        for answer in [each for each in self.waiting if now > each.deadline]:
            self.waiting.remove(answer)
            self._late(answer)

    def _late(self, answer: RunningRequest) -> None:
        self._count_stopped()
        _fail(
            answer.sender,
            f"the request was stopped after {self.limit_s:g} s, its limit "
            "(serving.request_timeout_s in the model's spec)",
        )

    def _drop(self, number: int) -> None:
        self.writer.drop(number)
        self._done(number)

    def _done(self, number: int) -> None:
        self.running.pop(number, None)
        self.alone = self.alone and bool(self.running)

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
        sys.path.append(str(folder / "chats"))
        from python_host.host import Host  # noqa: PLC0415 - only models with a chat template have it

        environment = _environment()
        self.host = Host(
            folder / "chats" / "python_host",
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


def _read(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields with texts instead of bytes.

    Raises:
        BadRequest: one is not UTF-8, or too large.
    """
    stop = [text_in(each, "a stop text") for each in fields["stop"]]
    return {**fields, "prompt": text_in(fields["prompt"], "the prompt"), "stop": stop}


def _environment() -> Path:
    """The environment of the server's Python, or of this one in an image."""
    environment = Path(os.environ.get("SHIPLIFT_SERVER_SITE", "").split(os.pathsep)[0], "..", "..", "..").resolve()
    return environment if (environment / "bin" / "python").exists() else Path(sys.prefix)


def _send(sender: pb_utils.ResponseSender, piece: Mapping[str, Any]) -> None:
    tensors = [
        pb_utils.Tensor("text", np.array([[piece["text"].encode()]], dtype=object)),
        pb_utils.Tensor("finish_reason", np.array([[piece["ended"].encode()]], dtype=object)),
        pb_utils.Tensor("tokens", np.array([[piece["tokens"]]], np.int32)),
        pb_utils.Tensor("prompt_tokens", np.array([[piece["prompt_tokens"]]], np.int32)),
    ]
    with contextlib.suppress(pb_utils.TritonModelException):  # the client has gone
        sender.send(pb_utils.InferenceResponse(tensors), flags=_FINAL if piece["ended"] else 0)


def _fail(sender: pb_utils.ResponseSender, why: str) -> None:
    with contextlib.suppress(pb_utils.TritonModelException):
        sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(why)), flags=_FINAL)
