"""Asks models for text over Triton's gRPC stream, many at a time in one thread, and translates their errors."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

import grpc
import grpc.aio
import numpy as np
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import InferenceServerException

from shiplift.runtime.model.generation.signature import (
    CHAT,
    FINISH_REASON,
    MAX_TOKENS,
    PROMPT,
    PROMPT_TOKENS,
    TEMPERATURE,
    TEXT,
    TOKENS,
)
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.serving import streaming
from shiplift.runtime.serving.discovery import ServedModel
from shiplift.runtime.serving.openai.messages import AnswerOptions, Piece, RequestProblem

_LONGEST_S = 3600.0  # a model has its own limit, `serving.request_timeout_s`
# How errors begin that are not the client's fault (`guest/generation/generation_model.py`), with OpenAI's status codes.
_BUSY, _UNLOADED, _LATE, _BROKEN = (
    "the server has",
    "the model is being unloaded",
    "the request was stopped after",
    "the server could not generate",
)
_STATUS = {_BUSY: 429, _UNLOADED: 503, _LATE: 504, _BROKEN: 500}
_OF_GRPC = {grpc.StatusCode.UNAVAILABLE: 503, grpc.StatusCode.DEADLINE_EXCEEDED: 504, grpc.StatusCode.NOT_FOUND: 404}


class Generators:
    """Connections to the servers of models, one for each address."""

    def __init__(self) -> None:
        self._channels: dict[tuple[str, str, bool], grpc.aio.Channel] = {}

    def answers(self, served: ServedModel, request: AnswerOptions) -> list[AsyncGenerator[Piece]]:
        """The answers to a request, in OpenAI's order: `n` to the first prompt, then `n` to the next."""
        return [
            self._answer(served, _inputs(request, prompt, number))
            for prompt in request.prompts
            for number in range(request.n)
        ]

    async def _answer(self, served: ServedModel, inputs: Arrays) -> AsyncGenerator[Piece]:
        request = streaming.request_of(served.name, served.signature, inputs)
        stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel(served))
        try:
            async for part in streaming.pieces_async(stub, request, served.signature, _LONGEST_S):
                yield Piece(
                    text=part[TEXT].item().decode(),
                    finish_reason=part[FINISH_REASON].item().decode(),
                    tokens=int(part[TOKENS].sum()),
                    prompt_tokens=int(part[PROMPT_TOKENS].sum()) if PROMPT_TOKENS in part else 0,
                )
        except (InferenceServerException, grpc.aio.AioRpcError) as error:
            raise problem_of(error, served.model) from error

    def _channel(self, served: ServedModel) -> grpc.aio.Channel:
        key = served.grpc, served.host, served.secure
        if key not in self._channels:
            options = [("grpc.default_authority", served.host)] if served.host else []
            self._channels[key] = (
                grpc.aio.secure_channel(served.grpc, grpc.ssl_channel_credentials(), options=options)
                if served.secure
                else grpc.aio.insecure_channel(served.grpc, options=options)
            )
        return self._channels[key]

    async def close(self) -> None:
        """Closes all connections."""
        for channel in self._channels.values():
            await channel.close()


async def merged(answers: Sequence[AsyncGenerator[Piece]]) -> AsyncIterator[tuple[int, Piece]]:
    """The pieces of several answers as they come, each with the number of its answer.

    The first error cancels all of them, and so does closing the iterator.
    """
    queue: asyncio.Queue[tuple[int, Piece | Exception | None]] = asyncio.Queue()

    async def forward(number: int, answer: AsyncGenerator[Piece]) -> None:
        try:
            async for piece in answer:
                await queue.put((number, piece))
            await queue.put((number, None))
        except Exception as error:  # the reader raises it
            await queue.put((number, error))
        finally:
            await answer.aclose()

    tasks = [asyncio.create_task(forward(number, answer)) for number, answer in enumerate(answers)]
    try:
        under_way = len(tasks)
        while under_way:
            number, item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                under_way -= 1
            else:
                yield number, item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def problem_of(error: Exception, model: str) -> RequestProblem:
    """A model server's error as the client gets it."""
    status = error.code() if isinstance(error, grpc.aio.AioRpcError) else None
    text = (error.details() or "") if isinstance(error, grpc.aio.AioRpcError) else str(error.message())  # type: ignore[attr-defined]
    message = " ".join(text.split())[:600]
    if "unknown model" in message:
        return RequestProblem(404, f"the server does not serve {model!r} any more", code="model_not_found")
    number = _OF_GRPC.get(status, 500) if status else _status_of(message)
    kind = "invalid_request_error" if number < 429 else "server_error"
    return RequestProblem(number, message or f"the server of {model!r} does not answer", kind=kind)


def _status_of(message: str) -> int:
    return next((status for beginning, status in _STATUS.items() if message.startswith(beginning)), 400)


def _inputs(request: AnswerOptions, prompt: str, number: int) -> Arrays:
    """The model's inputs; without a seed in the request, each answer gets a random one."""
    seed = secrets.randbelow(1 << 31) if request.seed is None else (request.seed + number) % (1 << 31)
    inputs: dict[str, Any] = {
        PROMPT: np.array([[prompt.encode()]], dtype=object),
        "seed": np.array([[seed]], np.int64),
    }
    if request.form.chat:
        inputs[CHAT] = np.array([[True]])
    if request.most_tokens is not None:
        inputs[MAX_TOKENS] = np.array([[min(request.most_tokens, 2**31 - 1)]], np.int32)
    for name, value in ((TEMPERATURE, request.temperature), ("top_p", request.top_p)):
        if value is not None:
            inputs[name] = np.array([[value]], np.float32)
    if request.stops:
        inputs["stop"] = np.array([[text.encode() for text in request.stops]], dtype=object)
    return inputs
