"""A process that scores parts: it gets its job and then parts, a line of JSON each, and answers in lines of JSON.

A dataset may crash the libraries that read it, or fill the memory: then only this process ends, with its part.
"""

import asyncio
import base64
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.offline.columns import SelectedColumns, types_of
from shiplift.runtime.offline.dataset import Dataset, Unreadable
from shiplift.runtime.offline.output import Output
from shiplift.runtime.offline.part import ScoringJob, score_part
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.failure import Failure
from shiplift.runtime.records.offline import InputPart, OnError
from shiplift.runtime.serving.discovery import ServedModel
from shiplift.runtime.serving.scoring.asking import Servers
from shiplift.runtime.serving.scoring.models import Scorable


class WorkerJob(Record):
    """What a worker scores with. `arrow_schema` is the output's, serialized and in base64."""

    served: ServedModel
    input: str
    output: str
    taken: tuple[str, ...]
    kept: tuple[str, ...]
    arrow_schema: str
    on_error: OnError
    rows: int
    scratch: str

    def job(self) -> ScoringJob:
        """The same with what is only known here."""
        model = Scorable(served=self.served)
        return ScoringJob(
            dataset=Dataset(self.input, types_of(model.schema)),
            output=Output(self.output),
            columns=SelectedColumns(taken=self.taken, kept=self.kept),
            schema=pa.ipc.read_schema(pa.BufferReader(base64.b64decode(self.arrow_schema))),
            model=model,
            on_error=self.on_error,
            rows=self.rows,
            scratch=Path(self.scratch),
        )


def serialized(schema: pa.Schema) -> str:
    """A schema as `WorkerJob.arrow_schema`."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


async def work() -> None:
    """Scores parts until no more come."""
    job, servers = WorkerJob.model_validate_json(sys.stdin.readline()).job(), Servers()
    try:
        while line := await asyncio.to_thread(sys.stdin.readline):
            say(**await _done(job, InputPart.model_validate_json(line), servers))
    finally:
        await servers.close()


async def _done(job: ScoringJob, part: InputPart, servers: Servers) -> dict[str, Any]:
    try:
        note = await score_part(job, part, servers, lambda rows: say(rows=rows))
    except Unreadable as error:
        return {"unreadable": str(error)}
    except ShipliftError as error:
        return {"failure": Failure.of(error).model_dump(mode="json")}
    return {"note": note.model_dump(mode="json")}


def say(**message: Any) -> None:
    """Tells the process that started this one."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(work())
