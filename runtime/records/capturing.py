"""What production keeps of a model's requests and answers, and what is kept of them."""

from pydantic import Field

from shiplift.runtime.records.base import Record


class Capturing(Record):
    """The share of a model's requests that is kept, for how long, and which columns: see the spec's `capture`."""

    share: float = Field(gt=0, le=1)
    limit_bytes: int
    retention_s: int
    hash: tuple[str, ...] = ()
    omit: tuple[str, ...] = ()
    key: str = ""


class CaptureState(Record):
    """What the writer last knew: requests dropped for want of room, or too large, and why it stopped, if it did.

    `at` is when it last looked, in seconds since the epoch.
    """

    at: float = 0.0
    captured: int = 0
    dropped: int = 0
    too_large: int = 0
    problem: str = ""


class Captured(Record):
    """What is kept of a model: rows, files, bytes; from when to when; and what the writer says."""

    model: str
    on: bool = False
    share: float = 0.0
    rows: int = 0
    files: int = 0
    size_bytes: int = 0
    limit_bytes: int = 0
    since: float | None = None
    until: float | None = None
    dropped: int = 0
    too_large: int = 0
    problem: str = ""


class ExportedRows(Record):
    """Rows that were written to a file."""

    model: str
    rows: int
    file: str


class DeletedRows(Record):
    """How many rows of a person were deleted."""

    model: str
    deleted: int
