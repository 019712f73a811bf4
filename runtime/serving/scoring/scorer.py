"""From a request's body to the body of its answer. Small bodies are read at once, others by threads, few at a time."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from starlette.concurrency import run_in_threadpool

from shiplift.runtime.serving.discovery import ServedModel
from shiplift.runtime.serving.scoring.answers import body_of
from shiplift.runtime.serving.scoring.asking import Servers
from shiplift.runtime.serving.scoring.conversing import WANTED, read_conversation
from shiplift.runtime.serving.scoring.models import Scorable
from shiplift.runtime.serving.scoring.problems import ScoringProblem
from shiplift.runtime.serving.scoring.requests import Asked, read_at_once, read_other
from shiplift.runtime.serving.scoring.schema import InputSchema

_SMALL_BYTES = 32 << 10
_LARGE_AT_ONCE = 2


class Scorer:
    """Reads requests, asks the models' servers, and writes answers."""

    def __init__(self) -> None:
        self._servers, self._large = Servers(), asyncio.Semaphore(_LARGE_AT_ONCE)

    async def answer(self, model: Scorable, kind: str, body: bytes) -> bytes:
        """The answer to a body of that media type.

        Raises:
            ScoringProblem: the request is wrong, or the model does not answer it.
        """
        if model.served.signature.streamed:
            raise ScoringProblem(400, f"{model.served.model!r} continues texts: `shiplift openai` serves it")
        if model.served.scoring and model.served.scoring.agent:
            conversation = read_conversation(kind, body)
            return conversation.body((await self._servers.ask(model.served, conversation.inputs, WANTED))[0])
        asked = await self._read(model.schema, kind, body)
        wanted = tuple(dict.fromkeys(part.tensor for part in model.form.parts))
        chunks = await self._servers.ask(model.served, asked.inputs, wanted, asked.params)
        if len(body) <= _SMALL_BYTES:
            return body_of(model.form, chunks)
        return await run_in_threadpool(body_of, model.form, chunks)

    async def close(self) -> None:
        """Closes the connections."""
        await self._servers.close()

    async def _read(self, schema: InputSchema, kind: str, body: bytes) -> Asked:
        if len(body) <= _SMALL_BYTES and (read := read_at_once(kind, body, schema)) is not None:
            return read
        async with self._large:
            return await run_in_threadpool(read_other, kind, body, schema)


def answer_once(served: ServedModel, kind: str, body: bytes) -> bytes:
    """The answer to one request, for programs without a scoring server; they may run an event loop of their own.

    Raises:
        ScoringProblem: as above.
    """

    async def answer() -> bytes:
        scorer = Scorer()
        try:
            return await scorer.answer(Scorable(served=served), kind, body)
        finally:
            await scorer.close()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(answer())).result()
