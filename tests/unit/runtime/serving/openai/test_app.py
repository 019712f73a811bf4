"""The API in front of a server that speaks Triton's stream, with the faults of one."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import grpc.aio
import httpx
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import serialize_byte_tensor

from shiplift.runtime.base.errors import StackDown
from shiplift.runtime.model.generation.signature import CHAT_SIGNATURE, SIGNATURE
from shiplift.runtime.serving.discovery import ServedModel
from shiplift.runtime.serving.openai.app import MAX_BODY_BYTES, create_app
from tests.unit.examples import signature


class Writer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc] # generated
    """Repeats the prompt, a word per piece; `error` instead, or after the first piece; `hangs` after it."""

    def __init__(self) -> None:
        self.error, self.late_error, self.hangs = "", "", False
        self.asked: list[dict[str, Any]] = []
        self.cancelled = threading.Event()

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802
        request = await anext(requests)
        fields = dict(zip((entry.name for entry in request.inputs), request.raw_input_contents, strict=True))
        self.asked.append(fields)
        if self.error:
            yield service_pb2.ModelStreamInferResponse(error_message=self.error)
            return
        words = fields["prompt"][4:].decode().split()
        for at, word in enumerate(words):
            yield _piece(word, "stop" if at == len(words) - 1 else "", 0 if at else len(words))
            if self.late_error:
                yield service_pb2.ModelStreamInferResponse(error_message=self.late_error)
                return
            if self.hangs:
                try:
                    await asyncio.sleep(60)
                finally:
                    self.cancelled.set()


def _piece(text: str, reason: str, read: int) -> Any:
    response = service_pb2.ModelInferResponse(model_name="writer", model_version="1")
    values: tuple[tuple[str, str, Any], ...] = (
        ("text", "BYTES", text),
        ("finish_reason", "BYTES", reason),
        ("tokens", "INT32", 1),
        ("prompt_tokens", "INT32", read),
    )
    for name, datatype, value in values:
        response.outputs.add(name=name, datatype=datatype, shape=[1, 1])
        raw = np.array([[value]], np.int32).tobytes() if datatype == "INT32" else None
        response.raw_output_contents.append(
            raw if raw is not None else serialize_byte_tensor(np.array([[value.encode()]], object)).item()
        )
    return service_pb2.ModelStreamInferResponse(infer_response=response)


@pytest.fixture
def writer() -> Iterator[tuple[Writer, str]]:
    """The server, and its address."""
    servicer, started, loop = Writer(), threading.Event(), asyncio.new_event_loop()
    address: list[str] = []

    async def run() -> None:
        server = grpc.aio.server()
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, server)
        address.append(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
        await server.start()
        started.set()
        await ended.wait()
        await server.stop(0)

    ended = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    assert started.wait(120)
    try:
        yield servicer, address[0]
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(timeout=120)
        loop.close()


def models(address: str) -> list[ServedModel]:
    common: dict[str, Any] = {"version": 1, "grpc": address, "http": ""}
    return [
        ServedModel(model="writer", name="writer", signature=SIGNATURE, **common),
        ServedModel(model="talker", name="talker", signature=CHAT_SIGNATURE, **common),
        ServedModel(model="digits", name="digits", signature=signature(), **common),
    ]


def ask(
    address: str, path: str = "/v1/completions", *, key: str = "", sent: str = "", method: str = "POST", **fields: Any
) -> httpx.Response:
    app = create_app(lambda: models(address), key=key)

    async def send() -> httpx.Response:
        headers = {"Authorization": f"Bearer {sent}"} if sent else {}
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://api", headers=headers) as client:
            body = {"model": "writer", **({} if "messages" in fields else {"prompt": "a b c"}), **fields}
            return await client.request(method, path, json=body)

    return asyncio.run(send())


def events(answer: httpx.Response) -> list[Any]:
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_an_answer_has_the_text_its_end_and_the_tokens(writer: tuple[Writer, str]) -> None:
    answer = ask(writer[1], max_tokens=7, temperature=0.5, stop=["x"])
    assert answer.status_code == 200
    body = answer.json()
    assert (body["object"], body["model"]) == ("text_completion", "writer")
    assert body["choices"] == [{"index": 0, "text": "abc", "logprobs": None, "finish_reason": "stop"}]
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
    (fields,) = writer[0].asked
    assert set(fields) == {"prompt", "max_tokens", "temperature", "seed", "stop"}


def test_several_answers_to_several_prompts_come_in_openai_s_order(writer: tuple[Writer, str]) -> None:
    body = ask(writer[1], prompt=["a b", "c"], n=2, seed=5).json()
    assert [(each["index"], each["text"]) for each in body["choices"]] == [(0, "ab"), (1, "ab"), (2, "c"), (3, "c")]
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}  # each prompt is read once
    seeds = sorted(int.from_bytes(fields["seed"], "little") for fields in writer[0].asked)
    assert seeds == [5, 5, 6, 6]


def test_without_a_seed_every_answer_is_drawn_with_its_own(writer: tuple[Writer, str]) -> None:
    ask(writer[1], n=8)
    assert len({fields["seed"] for fields in writer[0].asked}) > 1


def test_a_stream_gives_each_piece_then_the_tokens_if_asked_for(writer: tuple[Writer, str]) -> None:
    parts = events(ask(writer[1], stream=True, stream_options={"include_usage": True}))
    assert [part["choices"][0]["text"] for part in parts[:-1]] == ["a", "b", "c"]
    assert [part["choices"][0]["finish_reason"] for part in parts[:-1]] == [None, None, "stop"]
    assert parts[-1]["choices"] == []
    assert parts[-1]["usage"]["total_tokens"] == 6
    assert len({part["id"] for part in parts}) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        ("the prompt has 3 tokens and max_tokens is 9: too many", 400, "invalid_request_error"),
        ("the server has 512 requests in progress or waiting, its limit: try again later", 429, "server_error"),
        ("the request was stopped after 30 s, its limit", 504, "server_error"),
        ("the server could not generate: its memory is used up", 500, "server_error"),
        ("the model is being unloaded", 503, "server_error"),
        ("Request for unknown model: 'writer' is not found", 404, "invalid_request_error"),
    ],
)
def test_an_error_of_the_model_has_the_status_that_a_client_expects(
    writer: tuple[Writer, str], error: str, status: int, kind: str, stream: bool
) -> None:
    writer[0].error = error
    answer = ask(writer[1], stream=stream)
    assert answer.status_code == status
    assert answer.json()["error"]["type"] == kind


def test_an_error_after_the_first_piece_ends_the_stream_with_it(writer: tuple[Writer, str]) -> None:
    writer[0].late_error = "the request was stopped after 30 s, its limit"
    parts = events(ask(writer[1], stream=True))
    assert parts[0]["choices"][0]["text"] == "a"
    assert parts[-1]["error"]["message"] == "the request was stopped after 30 s, its limit"
    assert ask(writer[1]).status_code == 504


def test_a_server_that_is_away_is_said_to_be(writer: tuple[Writer, str]) -> None:
    answer = ask("127.0.0.1:1")
    assert answer.status_code == 503
    assert answer.json()["error"]["type"] == "server_error"


def test_only_models_that_generate_text_are_listed_and_found(writer: tuple[Writer, str]) -> None:
    listed = ask(writer[1], "/v1/models", method="GET").json()
    assert [each["id"] for each in listed["data"]] == ["talker", "writer"]
    assert ask(writer[1], "/v1/models/writer", method="GET").json()["id"] == "writer"
    for answer in (ask(writer[1], "/v1/models/digits", method="GET"), ask(writer[1], model="digits")):
        assert answer.status_code == 404
        assert "those that do: talker, writer" in answer.json()["error"]["message"]


def chat(address: str, **fields: Any) -> httpx.Response:
    said = {"messages": [{"role": "user", "content": "b c"}], "model": "talker", **fields}
    return ask(address, "/v1/chat/completions", **said)


def test_a_chat_is_answered_by_the_assistant(writer: tuple[Writer, str]) -> None:
    body = chat(writer[1], n=2, seed=1).json()
    told = '[{"role":"user","content":"bc"}]'
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert [each["message"]["role"] for each in body["choices"]] == ["assistant"] * 2
    assert [each["message"]["content"] for each in body["choices"]] == [told] * 2  # the server repeats what it is sent
    assert {each["finish_reason"] for each in body["choices"]} == {"stop"}
    fields = writer[0].asked[0]
    assert fields["chat"] == b"\x01"
    assert "max_tokens" not in fields


def test_a_streamed_chat_begins_with_the_role(writer: tuple[Writer, str]) -> None:
    parts = events(chat(writer[1], stream=True, stream_options={"include_usage": True}))
    assert {part["object"] for part in parts} == {"chat.completion.chunk"}
    assert parts[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(part["choices"][0]["delta"].get("content", "") for part in parts[:-1])
    assert text == '[{"role":"user","content":"bc"}]'
    assert [part["choices"][0]["finish_reason"] for part in parts[:-1]][-2:] == [None, "stop"]
    assert parts[-1]["choices"] == []
    assert parts[-1]["usage"]["completion_tokens"] == len(parts) - 2


def test_a_model_without_a_chat_template_is_said_to_take_prompts(writer: tuple[Writer, str]) -> None:
    answer = chat(writer[1], model="writer")
    assert answer.status_code == 400
    message = "'writer' has no chat template: send the whole prompt to /v1/completions"
    assert message in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/models", "/v1/models/writer", "/v1/chat/completions"])
def test_requests_without_the_key_are_refused(writer: tuple[Writer, str], path: str) -> None:
    method = "GET" if "models" in path else "POST"
    for wrong in ("", "other", "s3cre", "s3cret2"):
        answer = ask(writer[1], path, key="s3cret", sent=wrong, method=method)
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "invalid_api_key"
    assert writer[0].asked == []
    assert ask(writer[1], path, key="s3cret", sent="s3cret", method=method).status_code != 401
    assert ask(writer[1], "/healthz", key="s3cret", method="GET").status_code == 200


def test_a_body_beyond_the_limit_is_refused_before_it_is_read_whole(writer: tuple[Writer, str]) -> None:
    answer = ask(writer[1], prompt="a" * (MAX_BODY_BYTES + 1))
    assert answer.status_code == 413
    assert str(MAX_BODY_BYTES) in answer.json()["error"]["message"]


def test_while_the_stack_is_down_the_api_says_so() -> None:
    def down() -> list[ServedModel]:
        raise StackDown("no stack was started", do="Run `shiplift up`.")

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app=create_app(down))
        async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
            return await client.get("/v1/models")

    answer = asyncio.run(send())
    assert answer.status_code == 503
    assert "no stack was started" in answer.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_request_at_the_model(writer: tuple[Writer, str], stream: bool) -> None:
    import uvicorn

    writer[0].hangs = True
    server = uvicorn.Server(uvicorn.Config(create_app(lambda: models(writer[1])), port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        deadline = time.monotonic() + 120
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        body = {"model": "writer", "prompt": "a b c", "stream": stream}
        with (
            pytest.raises(httpx.ReadTimeout),
            httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=1, trust_env=False) as client,
        ):
            client.post("/v1/completions", json=body)
        assert writer[0].cancelled.wait(120)
    finally:
        server.should_exit = True
        thread.join(timeout=120)
