"""A process of this machine."""

from shiplift.runtime.records.base import Record


class Process(Record):
    """A process by pid and start time (seconds since the epoch), so a reused pid is not mistaken for it."""

    pid: int
    started_at: float
