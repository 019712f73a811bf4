"""The section `capture` of the spec: what is kept of production's requests and answers."""

import re
from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from shiplift.runtime.spec.fields import Section

_SIZE = re.compile(r"(\d{1,6})(MB|GB|TB)")
_TIME = re.compile(r"(\d{1,6})([smhd])")
_BYTES = {"MB": 10**6, "GB": 10**9, "TB": 10**12}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def size_of(text: str) -> int:
    """A size such as `500MB` or `1GB`, in bytes.

    Raises:
        ValueError: it is none, or zero.
    """
    if not (match := _SIZE.fullmatch(text)) or not int(match[1]):
        raise ValueError(f"{text!r} is not a size: write a number and MB, GB or TB, such as 1GB")
    return int(match[1]) * _BYTES[match[2]]


def time_of(text: str) -> int:
    """A time such as `30d` or `1h`, in seconds.

    Raises:
        ValueError: it is none, or zero.
    """
    if not (match := _TIME.fullmatch(text)) or not int(match[1]):
        raise ValueError(f"{text!r} is not a time: write a number and s, m, h or d, such as 30d")
    return int(match[1]) * _SECONDS[match[2]]


def listed_as(name: str, listed: Sequence[str]) -> bool:
    """Whether a column is among those listed; `input/age` and `age` may stand for each other."""
    return any(name == each or _own(name) == each or name == _own(each) for each in listed)


def _own(name: str) -> str:
    return name.removeprefix("input/").removeprefix("output/")


def _size(text: str) -> str:
    size_of(text)
    return text


def _time(text: str) -> str:
    time_of(text)
    return text


Size = Annotated[str, AfterValidator(_size)]
Duration = Annotated[str, AfterValidator(_time)]


class Capture(Section):
    """Which of production's requests and answers are kept, as Parquet files. Off until `share` is more than 0.

    `share` is the part of the requests that is kept, drawn at random. When the files of a model have more than `limit`
    bytes, the oldest are deleted; rows are deleted once they are older than `retention`. Columns in `hash` are kept as
    a keyed hash (HMAC-SHA256 with a secret of the site), so that equal values stay equal; columns in `omit` are not
    kept. `key` is the input that says whose row it is: `shiplift captured MODEL --delete --key VALUE` deletes by it.
    Columns are the model's inputs and outputs by name, or `input/NAME` and `output/NAME` where both have one.
    """

    share: float = Field(0, ge=0, le=1)
    limit: Size = "1GB"
    retention: Duration = "30d"
    hash: tuple[str, ...] = Field((), max_length=1000)
    omit: tuple[str, ...] = Field((), max_length=1000)
    key: str = ""

    @property
    def limit_bytes(self) -> int:
        """The limit of a model's files, in bytes."""
        return size_of(self.limit)

    @property
    def retention_s(self) -> int:
        """How long rows are kept, in seconds."""
        return time_of(self.retention)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if both := sorted(set(self.hash) & set(self.omit)):
            raise ValueError(f"{both[0]!r} is in both `hash` and `omit`: leave it out of one")
        if self.key and self.key in self.omit:
            raise ValueError(f"`key` {self.key!r} is in `omit`, so that no row could be found by it: put it in `hash`")
        return self
