"""Scores a part: reads, asks and writes at the same time, with a few batches in memory."""

import asyncio
import json
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from shiplift.runtime.base.errors import DataInvalid
from shiplift.runtime.base.storage import room_for
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.offline.answering import Answering, Asks, ScoredRows
from shiplift.runtime.offline.columns import ERROR, SelectedColumns, answer_columns
from shiplift.runtime.offline.dataset import Dataset
from shiplift.runtime.offline.output import Output, PartNote
from shiplift.runtime.records.offline import InputPart, OnError
from shiplift.runtime.serving.scoring.answers import arrays_of
from shiplift.runtime.serving.scoring.models import Scorable

_AHEAD = 2  # batches that are asked while another is read
Tell = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class ScoringJob:
    """Everything that scoring a part takes, besides the part."""

    dataset: Dataset
    output: Output
    columns: SelectedColumns
    schema: pa.Schema
    model: Scorable
    on_error: OnError
    rows: int
    scratch: Path


@dataclass
class _Counts:
    rows: int = 0
    refused: int = 0


async def score_part(job: ScoringJob, part: InputPart, servers: Asks, tell: Tell = lambda _: None) -> PartNote:
    """Scores a part, whose output then is there as a whole. `tell` gets the number of rows after each batch.

    Raises:
        DataInvalid: the model refused a row, and the order ends then.
        Unreadable: the part is damaged.
        ServerFailed: the server failed.
        StorageFull: no space is left.
    """
    began, counts = time.monotonic(), _Counts()
    with room_for(part.output, job.scratch), _Writer.open(job, part) as writer:
        await _answer_all(job, part, Answering(job.model, servers), writer, counts, tell)
        writer.finish()
        read = await asyncio.to_thread(job.dataset.digest, part, job.columns.read)
        if counts.refused:
            job.output.place_refused(writer.refused, part)
        written = job.output.place(writer.file, part)
    note = PartNote(
        part=part.name,
        input_sha256=read,
        output_sha256=written,
        rows=counts.rows,
        refused=counts.refused,
        seconds=round(time.monotonic() - began, 3),
    )
    job.output.put_note(note)
    return note


async def _answer_all(
    job: ScoringJob, part: InputPart, answering: Answering, writer: "_Writer", counts: _Counts, tell: Tell
) -> None:
    waiting: deque[tuple[pa.RecordBatch, asyncio.Task[list[ScoredRows]]]] = deque()
    batches = job.dataset.batches(part, job.columns.read, min(job.rows, job.dataset.rows_at_once(part)))
    try:
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            taken = batch.select(list(job.columns.taken))
            waiting.append((batch, asyncio.create_task(answering.answers(taken, counts.rows))))
            counts.rows += batch.num_rows
            if len(waiting) > _AHEAD:
                await _write_next(writer, waiting, counts, tell)
        while waiting:
            await _write_next(writer, waiting, counts, tell)
    finally:
        for _, task in waiting:
            task.cancel()
        await asyncio.gather(*(task for _, task in waiting), return_exceptions=True)
        batches.close()


async def _write_next(writer: "_Writer", waiting: deque[Any], counts: _Counts, tell: Tell) -> None:
    batch, task = waiting[0]
    answered = await task
    waiting.popleft()
    counts.refused += await asyncio.to_thread(writer.write, batch, answered)
    tell(batch.num_rows)


@dataclass(kw_only=True)
class _Writer:
    """The part's unfinished files."""

    job: ScoringJob
    part: InputPart
    file: Path
    refused: Path
    _table: Any = None
    _reasons: TextIO | None = field(default=None)

    @classmethod
    @contextmanager
    def open(cls, job: ScoringJob, part: InputPart) -> Iterator["_Writer"]:
        """A writer whose files are removed unless they have been placed."""
        with tempfile.TemporaryDirectory(prefix=f"{part.name}.", dir=job.scratch) as folder:
            writer = cls(job=job, part=part, file=Path(folder) / "part", refused=Path(folder) / "refused")
            writer._table = parquet.ParquetWriter(writer.file, job.schema, compression="zstd")
            try:
                yield writer
            finally:
                writer.finish()

    def finish(self) -> None:
        """Closes the files."""
        self._table.close()
        if self._reasons:
            self._reasons.close()

    def write(self, batch: pa.RecordBatch, answered: list[ScoredRows]) -> int:
        """Writes a batch's answers; returns how many rows were refused.

        Raises:
            DataInvalid: one was, and the order ends then.
        """
        refused = [each for each in answered if each.reason]
        if refused and self.job.on_error == "fail":
            row = self.part.first + refused[0].start
            raise DataInvalid(
                f"the model refuses row {row} of {self.part.file}: {refused[0].reason}",
                do="Correct it, or use --errors skip or --errors column, which keep the reasons.",
            )
        self._note(refused)
        table = self._rows(batch, answered)
        if table.num_rows:
            self._table.write_batch(table)
        return len(refused)

    def _rows(self, batch: pa.RecordBatch, answered: list[ScoredRows]) -> pa.RecordBatch:
        """The output's rows for a batch."""
        kept = {name: batch.column(name) for name in self.job.columns.kept}
        outputs = [chunk for each in answered for chunk in each.outputs]
        right = np.concatenate([np.full(each.rows, not each.reason) for each in answered])
        values = self._answers(outputs)
        if self.job.on_error == "column":
            places = pa.array(np.where(right, np.cumsum(right) - 1, 0), mask=~right)
            values = {name: column.take(places) for name, column in values.items()}
            reasons = [reason for each in answered for reason in [each.reason or None] * each.rows]
            values[ERROR] = pa.array(reasons, pa.string())
        elif not right.all():
            kept = {name: column.filter(pa.array(right)) for name, column in kept.items()}
        columns = {**kept, **values}
        fields = [columns[field.name].cast(field.type) for field in self.job.schema]
        return pa.RecordBatch.from_arrays(fields, schema=self.job.schema)

    def _answers(self, outputs: list[Arrays]) -> dict[str, pa.Array]:
        if outputs:
            return answer_columns(self.job.model, arrays_of(self.job.model.form, outputs), self.job.schema)
        names = [field for field in self.job.schema if field.name not in (*self.job.columns.kept, ERROR)]
        return {field.name: pa.array([], field.type) for field in names}

    def _note(self, refused: list[ScoredRows]) -> None:
        if not refused:
            return
        if self._reasons is None:
            self._reasons = self.refused.open("w", encoding="utf-8")
        for each in refused:
            entry = {"file": self.part.file, "row": self.part.first + each.start, "reason": each.reason}
            self._reasons.write(json.dumps(entry, ensure_ascii=False) + "\n")
