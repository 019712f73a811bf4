"""From a request's body to the body of its answer. Small bodies are read at once, others by threads, few at a time."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool

from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.serving.discovery import ServedModel
from shiplift.runtime.serving.scoring.answers import body_of, is_split, value_of
from shiplift.runtime.serving.scoring.asking import Servers
from shiplift.runtime.serving.scoring.conversing import WANTED, read_conversation
from shiplift.runtime.serving.scoring.models import Scorable
from shiplift.runtime.serving.scoring.problems import ScoringProblem
from shiplift.runtime.serving.scoring.requests import JSON, ScoringRequest, read_at_once, read_other
from shiplift.runtime.serving.scoring.schema import InputSchema

R = TypeVar("R")
_SMALL_BYTES = 32 << 10
_LARGE_AT_ONCE = 2
_ONE_ROW = (
    "the request has {rows} rows, and this model takes one: its answer is about the request as a whole, and differs "
    "from what it answers to each row. Send one row per request"
)


class Scorer:
    """Reads requests, asks the models' servers, and writes answers."""

    def __init__(self) -> None:
        self._servers, self._large = Servers(), asyncio.Semaphore(_LARGE_AT_ONCE)

    async def answer(self, model: Scorable, kind: str, body: bytes) -> bytes:
        """The answer to a body of that media type.

        Raises:
            ScoringProblem: the request is wrong, or the model does not answer it.
        """
        if (agent := await self._agent(model, kind, body)) is not None:
            return agent
        asked = await self._asked(model, kind, body)
        chunks = await self._chunks(model, asked)
        if len(body) <= _SMALL_BYTES:
            return body_of(model.form, chunks, wrapped=asked.wrapped)
        return await run_in_threadpool(body_of, model.form, chunks, wrapped=asked.wrapped)

    async def value(self, model: Scorable, body: bytes) -> Any:
        """The answer to a body of JSON as a value for programs: an array, a data frame, arrays by name, or an object.

        Raises:
            ScoringProblem: as above.
        """
        if (agent := await self._agent(model, JSON, body)) is not None:
            return json.loads(agent)
        return value_of(model.form, await self._chunks(model, await self._asked(model, JSON, body)))

    async def _agent(self, model: Scorable, kind: str, body: bytes) -> bytes | None:
        """The answer of a chat model or an agent; None if the model is none."""
        if not (model.served.scoring and model.served.scoring.agent):
            return None
        conversation = read_conversation(kind, body)
        return conversation.body((await self._servers.ask(model.served, conversation.inputs, WANTED))[0])

    async def _asked(self, model: Scorable, kind: str, body: bytes) -> ScoringRequest:
        """What a body asks of a model that is not an agent."""
        if model.served.signature.streamed:
            raise ScoringProblem(400, f"{model.served.model!r} continues texts: `shiplift openai` serves it")
        return await self._read(model.schema, kind, body)

    async def _chunks(self, model: Scorable, asked: ScoringRequest) -> list[Arrays]:
        """The outputs for consecutive rows of a request."""
        if is_split(model.served, model.form, rows := len(next(iter(asked.inputs.values())))):
            raise ScoringProblem(400, _ONE_ROW.format(rows=rows))
        wanted = tuple(dict.fromkeys(part.tensor for part in model.form.parts))
        return await self._servers.ask(model.served, asked.inputs, wanted, asked.params)

    async def close(self) -> None:
        """Closes the connections."""
        await self._servers.close()

    async def _read(self, schema: InputSchema, kind: str, body: bytes) -> ScoringRequest:
        if len(body) <= _SMALL_BYTES and (read := read_at_once(kind, body, schema)) is not None:
            return read
        async with self._large:
            return await run_in_threadpool(read_other, kind, body, schema)


def answer_once(served: ServedModel, kind: str, body: bytes) -> bytes:
    """The answer to one request, for programs without a scoring server; they may run an event loop of their own.

    Raises:
        ScoringProblem: as above.
    """
    return _once(lambda scorer: scorer.answer(Scorable(served=served), kind, body))


def value_once(served: ServedModel, body: bytes) -> Any:
    """The same as a value, to a body of JSON."""
    return _once(lambda scorer: scorer.value(Scorable(served=served), body))


def _once(ask: Callable[[Scorer], Awaitable[R]]) -> R:
    async def answer() -> R:
        scorer = Scorer()
        try:
            return await ask(scorer)
        finally:
            await scorer.close()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(answer())).result()
