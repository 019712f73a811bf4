"""Answers to rows of a dataset. The rows of a refused request are asked in halves, until those to blame are found."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from tenacity import AsyncRetrying, retry_if_exception, stop_after_delay, wait_exponential_jitter

from shiplift.runtime.base.errors import ServerFailed
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.serving.discovery import ServedModel
from shiplift.runtime.serving.scoring.models import Scorable
from shiplift.runtime.serving.scoring.problems import ScoringProblem
from shiplift.runtime.serving.scoring.tables import read_rows

_LATER = (429, 503)  # the server is busy, or its model's process starts again after a crash
_AGAIN_S = 60.0


class Asks(Protocol):
    """Asks a server: `runtime.serving.scoring.asking.Servers`, or a stand-in in a test."""

    async def ask(self, served: ServedModel, inputs: Arrays, wanted: tuple[str, ...], params: str = "") -> list[Arrays]:
        """The wanted outputs for consecutive rows, in their order."""


@dataclass(frozen=True, kw_only=True)
class ScoredRows:
    """Consecutive rows with their outputs, from row `start` on; or, with a `reason`, one row that was refused."""

    start: int
    rows: int
    outputs: Sequence[Arrays] = ()
    reason: str = ""


class Answering:
    """Asks a model's server about rows."""

    def __init__(self, model: Scorable, servers: Asks) -> None:
        self._model, self._servers = model, servers
        self._wanted = tuple(dict.fromkeys(part.tensor for part in model.form.parts))

    async def answers(self, rows: pa.RecordBatch, start: int = 0) -> list[ScoredRows]:
        """The answers to rows, in their order; they have the model's columns, and the first is number `start`.

        Raises:
            ServerFailed: the server fails, whatever it is asked.
        """
        try:
            inputs = read_rows(rows, self._model.schema)
            outputs = await self._asked(inputs)
        except ScoringProblem as problem:
            if problem.status >= 500 or problem.status in (404, *_LATER):
                raise ServerFailed(str(problem), do="Run the same command again to go on.") from problem
            if rows.num_rows == 1:
                return [ScoredRows(start=start, rows=1, reason=str(problem))]
            half = rows.num_rows // 2
            first = await self.answers(rows.slice(0, half), start)
            return [*first, *await self.answers(rows.slice(half), start + half)]
        return [ScoredRows(start=start, rows=rows.num_rows, outputs=outputs)]

    async def _asked(self, inputs: Arrays) -> list[Arrays]:
        again = AsyncRetrying(
            retry=retry_if_exception(lambda error: isinstance(error, ScoringProblem) and error.status in _LATER),
            stop=stop_after_delay(_AGAIN_S),
            wait=wait_exponential_jitter(multiplier=0.1, max=5),
            reraise=True,
        )
        async for attempt in again:
            with attempt:
                return await self._servers.ask(self._model.served, inputs, self._wanted)
        raise AssertionError("unreachable")
