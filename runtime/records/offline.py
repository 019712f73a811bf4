"""Scoring of a dataset apart from production: what was ordered, how it is divided, and what came of it."""

from typing import Literal

from pydantic import Field

from shiplift.runtime.records.base import Record
from shiplift.runtime.records.kinds.package import Package

OnError = Literal["fail", "skip", "column"]


class OfflineOrder(Record):
    """An order to score a dataset. `input` and `output` are folders, files or URIs that fsspec knows.

    `version` 0 and no `alias` mean the champion. `candidate` also allows a version that was not promoted. `keep` are
    the columns that the output repeats (None: those that are no inputs of the model). `on_error` says what becomes of a
    row that the model refuses. `batch` is how many rows a request may have (0: as the package was tuned), `limit` how
    many rows are scored (0: all), `workers` how many processes or pods read, ask and write (0: chosen here).
    `overwrite` removes what an earlier order left in `output`.
    """

    model: str
    version: int = Field(0, ge=0)
    alias: str = ""
    candidate: bool = False
    input: str
    output: str
    keep: tuple[str, ...] | None = None
    on_error: OnError = "fail"
    batch: int = Field(0, ge=0, le=65_536)
    limit: int = Field(0, ge=0)
    workers: int = Field(0, ge=0, le=1024)
    overwrite: bool = False


class InputFile(Record):
    """A file of a dataset, by its path below the input. `stamp` changes when somebody writes to it."""

    path: str
    size_bytes: int
    stamp: str


class InputPart(Record):
    """A part of a dataset, which becomes one file of the output.

    Of a Parquet file, it is the row groups from `groups[0]` up to, but without, `groups[1]`; of another, all of it.
    `first` is the number of its first row in the file, `rows` how many are scored (-1: as many as there are).
    `of_file` is the file's place among the files, `at` the part's place in the file.
    """

    of_file: int
    at: int
    file: str
    groups: tuple[int, int] = (0, 0)
    first: int = 0
    rows: int = -1

    @property
    def name(self) -> str:
        """Its name, which no other file's change can alter."""
        return f"{self.of_file:05}-{self.at:04}"

    @property
    def output(self) -> str:
        """The name of its file in the output."""
        return f"part-{self.name}.parquet"


class OfflineShare(Record):
    """The parts that one process or pod scores: every `of`-th, beginning with number `at`."""

    name: str
    at: int
    of: int


class PartFailure(Record):
    """A part that was not scored, and why; `part` is empty if the file's parts can't be counted."""

    part: str = ""
    file: str
    reason: str


class OfflinePlan(Record):
    """What is to be done: the package to serve, and the shares of the work. The parts are listed beside the output.

    `rows` counts all rows, as far as their files tell (-1: they don't); `parts` all parts, `done` those done before.
    `unreadable` are files whose parts can't be counted, and `digest` is the stored plan's.
    """

    package: Package
    digest: str
    rows: int
    parts: int
    done: int
    shares: tuple[OfflineShare, ...]
    unreadable: tuple[PartFailure, ...] = ()

    def remark(self) -> str:
        """What is scored, with which version."""
        before = f", {self.done} of them done before" if self.done else ""
        rows = f"{self.rows:,} rows in " if self.rows >= 0 else ""
        return f"{self.package.model}/{self.package.version}: {rows}{self.parts} parts{before}"


class ShareScored(Record):
    """What a share came to: rows read and refused, and the parts that failed."""

    name: str
    rows: int = 0
    refused: int = 0
    seconds: float = 0.0
    failed: tuple[PartFailure, ...] = ()

    def remark(self) -> str:
        """How many rows were scored, and how fast."""
        refused = f", {self.refused:,} refused" if self.refused else ""
        failed = f", {len(self.failed)} parts failed" if self.failed else ""
        return f"{self.rows:,} rows, {self.rows / max(self.seconds, 1e-3):,.0f} rows/s{refused}{failed}"


class OfflineResult(Record):
    """A scored dataset: all its rows, with those that earlier runs of the same order scored.

    `rows_per_s` is what this run reached in all, without the start of servers.
    """

    model: str
    version: int
    digest: str
    output: str
    parts: int
    rows: int
    refused: int
    rows_per_s: float = 0.0
    failed: tuple[PartFailure, ...] = ()
