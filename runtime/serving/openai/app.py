"""The application: OpenAI's routes in front of models that generate text, streamed if asked for.

`/v1/completions` continues prompts, `/v1/chat/completions` conversations, for models with a chat template.

A client that disconnects cancels its request at the model. The size of bodies is limited while they are read, and a
key, if there is one, is checked before anything else.
"""

import asyncio
import hmac
import json
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import structlog
from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.concurrency import run_in_threadpool

from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.model.generation.signature import CHAT
from shiplift.runtime.serving.discovery import ServedModel
from shiplift.runtime.serving.openai import messages
from shiplift.runtime.serving.openai.generating import Generators, merged
from shiplift.runtime.serving.openai.messages import (
    AnswerOptions,
    ChatRequest,
    CompletionRequest,
    Count,
    Head,
    Piece,
    RequestProblem,
)

MAX_BODY_BYTES = 8 << 20  # several prompts of 1 MiB, the model's limit
_KNOWN_S = 2.0  # how long a look-up of the serving models stays valid


class GenerationModels:
    """The models that generate text now; `look_up` returns all served models."""

    def __init__(self, look_up: Callable[[], Sequence[ServedModel]]) -> None:
        self._look_up = look_up
        self._known: dict[str, ServedModel] = {}
        self._known_at = float("-inf")
        self._lock = asyncio.Lock()

    async def all(self) -> dict[str, ServedModel]:
        """The models by name.

        Raises:
            RequestProblem: they can't be looked up at the moment.
        """
        async with self._lock:
            if time.monotonic() - self._known_at > _KNOWN_S:
                try:
                    served = await run_in_threadpool(self._look_up)
                except ShipliftError as error:
                    raise RequestProblem(503, str(error), kind="server_error") from error
                self._known = {each.model: each for each in served if each.signature.streamed}
                self._known_at = time.monotonic()
        return self._known

    async def named(self, model: str) -> ServedModel:
        """The model of that name.

        Raises:
            RequestProblem: it does not exist.
        """
        known = await self.all()
        if model not in known:
            names = ", ".join(sorted(known)) or "none"
            message = f"no model {model!r} generates text here; those that do: {names}"
            raise RequestProblem(404, message, code="model_not_found")
        return known[model]


class Api:
    """The handlers of the routes."""

    def __init__(self, look_up: Callable[[], Sequence[ServedModel]]) -> None:
        self._models, self._generators = GenerationModels(look_up), Generators()

    async def healthz(self) -> dict[str, str]:
        """Whether this process answers."""
        return {"status": "ok"}

    async def list_models(self) -> dict[str, object]:
        """The models that generate text."""
        return {"object": "list", "data": [_model(name) for name in sorted(await self._models.all())]}

    async def get_model(self, model: str) -> dict[str, object]:
        """One of them."""
        return _model((await self._models.named(model)).model)

    async def complete(self, request: Request) -> Response:
        """Continues prompts."""
        asked = messages.read(CompletionRequest, await _body(request))
        return await self._answer(request, asked, await self._models.named(asked.model))

    async def chat(self, request: Request) -> Response:
        """Answers conversations."""
        asked = messages.read(ChatRequest, await _body(request))
        served = await self._models.named(asked.model)
        if CHAT not in {spec.name for spec in served.signature.inputs}:
            message = f"{asked.model!r} has no chat template: send the whole prompt to /v1/completions"
            raise RequestProblem(400, message, code="unsupported")
        return await self._answer(request, asked, served)

    async def _answer(self, request: Request, asked: AnswerOptions, served: ServedModel) -> Response:
        head = Head(id=f"{asked.form.prefix}-{uuid.uuid4().hex}", created=int(time.time()), model=asked.model)
        pieces = merged(self._generators.answers(served, asked))
        if asked.stream:
            return await _streamed(head, asked, pieces)
        return await _while_connected(request, _whole(head, asked, pieces))

    @asynccontextmanager
    async def running(self, _: FastAPI) -> AsyncIterator[None]:
        """The application's lifespan: closes the connections at its end."""
        yield
        await self._generators.close()


def create_app(look_up: Callable[[], Sequence[ServedModel]], *, key: str = "") -> FastAPI:
    """The application; `look_up` returns all served models. With a `key`, requests must carry it as their token."""
    api = Api(look_up)

    async def check_key(request: Request) -> None:
        given = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
        if key and not hmac.compare_digest(given.encode(), key.encode()):
            raise RequestProblem(401, "the API key is missing or wrong", code="invalid_api_key")

    app = FastAPI(title="Shiplift", docs_url=None, redoc_url=None, openapi_url=None, lifespan=api.running)
    app.add_exception_handler(RequestProblem, _refused)
    guarded = [Depends(check_key)]
    app.add_api_route("/healthz", api.healthz)
    app.add_api_route("/v1/models", api.list_models, dependencies=guarded)
    app.add_api_route("/v1/models/{model}", api.get_model, dependencies=guarded)
    app.add_api_route("/v1/completions", api.complete, methods=["POST"], dependencies=guarded)
    app.add_api_route("/v1/chat/completions", api.chat, methods=["POST"], dependencies=guarded)
    return app


def _model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "shiplift"}


async def _refused(_: Request, error: Exception) -> Response:
    """The error as OpenAI's clients expect it."""
    assert isinstance(error, RequestProblem)  # noqa: S101 - it handles no others
    return JSONResponse(error.body, status_code=error.status)


async def _body(request: Request) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise RequestProblem(
                413, f"the request has more than {MAX_BODY_BYTES} bytes, the limit: shorten the prompts"
            )
        parts.append(part)
    return b"".join(parts)


async def _whole(head: Head, asked: AnswerOptions, pieces: AsyncIterator[tuple[int, Piece]]) -> Response:
    count = Count(asked)
    texts, reasons = [""] * asked.answers, [""] * asked.answers
    async for number, piece in pieces:
        texts[number] += piece.text
        reasons[number] = piece.finish_reason or reasons[number]
        count.add(number, piece)
    choices = [asked.form.choice(number, texts[number], reasons[number]) for number in range(asked.answers)]
    return JSONResponse(head.body(asked.form.whole, choices, count.usage()))


async def _streamed(head: Head, asked: AnswerOptions, pieces: AsyncIterator[tuple[int, Piece]]) -> Response:
    """A stream of events. The first piece is awaited before the status is sent, so an early refusal has its own."""
    first = await anext(pieces, None)
    if first is None:
        raise RequestProblem(500, f"{head.model!r} gave no answer", kind="server_error")

    async def events() -> AsyncGenerator[str]:
        count, form = Count(asked), asked.form
        for opening in form.openings(asked.answers):
            yield _event(head.body(form.part, [opening]))
        try:
            async for number, piece in _again(first, pieces):
                count.add(number, piece)
                yield _event(head.body(form.part, [form.piece(number, piece.text, piece.finish_reason)]))
            if asked.stream_options and asked.stream_options.include_usage:
                yield _event(head.body(form.part, [], count.usage()))
        except RequestProblem as problem:
            yield _event(problem.body)
        yield "data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})


async def _again(
    first: tuple[int, Piece], pieces: AsyncIterator[tuple[int, Piece]]
) -> AsyncGenerator[tuple[int, Piece]]:
    yield first
    async for each in pieces:
        yield each


def _event(body: Mapping[str, object]) -> str:
    return f"data: {json.dumps(body)}\n\n"


async def _while_connected(request: Request, answering: Coroutine[Any, Any, Response]) -> Response:
    """The answer, or if the client disconnects, an empty one: the work on it is then cancelled."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    answer, leaving = asyncio.create_task(answering), asyncio.create_task(gone())
    try:
        await asyncio.wait({answer, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        structlog.get_logger().info("cancelled", path=request.url.path, why="the client disconnected")
        return Response(status_code=499)  # never delivered
    finally:
        for each in (answer, leaving):
            each.cancel()
        await asyncio.gather(answer, leaving, return_exceptions=True)
