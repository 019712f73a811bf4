"""A measured number as the registry keeps it, for charts over versions."""

from shiplift.runtime.records.base import Record


class Figure(Record):
    """A number by its name in a section of charts (empty: none); `step` orders the numbers of one name."""

    name: str
    value: float
    section: str = ""
    step: int = 0
