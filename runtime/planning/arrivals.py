"""When requests arrive: at a rate with some burstiness, or as recorded."""

from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from shiplift.runtime.base.errors import UsageError
from shiplift.runtime.records.base import Record

Floats = npt.NDArray[np.float64]
MOST_RECORDED = 50_000  # more make the search slower and say little more about the 99th percentile
_LEAST_RECORDED = 1000


class Arrivals(Record):
    """Requests that arrive at `rate_per_s` on average; their intervals have a coefficient of variation of `cv`.

    A `cv` of 0 is a clock, 1 is Poisson, more means bursts. `recorded_s` are arrival times in s from 0 on, to be
    replayed.
    """

    rate_per_s: float = Field(gt=0, le=1e6)
    cv: float = Field(1.0, ge=0, le=20)
    recorded_s: tuple[Annotated[float, Field(ge=0)], ...] = Field((), repr=False)

    def times(self, count: int, generator: np.random.Generator) -> Floats:
        """The times of the next `count` requests in s, ascending; all recorded ones if there are any."""
        if self.recorded_s:
            return np.asarray(self.recorded_s, dtype=np.float64)
        return renewals(self.cv, count, generator) / self.rate_per_s


def renewals(cv: float, count: int, generator: np.random.Generator) -> Floats:
    """The times of a gamma renewal process of rate 1 whose intervals have this coefficient of variation."""
    if cv == 0:
        return np.arange(1, count + 1, dtype=np.float64)
    return np.asarray(np.cumsum(generator.gamma(1 / cv**2, cv**2, count)), dtype=np.float64)


def recorded(text: str) -> Arrivals:
    """Arrivals from text with one time in s per line, in any order, from any origin.

    Raises:
        UsageError: a line is not a number, or there are too few or too many.
    """
    try:
        times = np.sort(np.array([float(line) for line in text.split()], dtype=np.float64))
    except ValueError as error:
        raise UsageError(f"the recorded arrivals have a line that is not a time: {error}", do=_FORM) from error
    if not _LEAST_RECORDED <= len(times) <= MOST_RECORDED:
        raise UsageError(
            f"{len(times)} arrivals are recorded, the limits are {_LEAST_RECORDED} and {MOST_RECORDED}", do=_FORM
        )
    if not np.isfinite(times).all() or times[-1] <= times[0]:
        raise UsageError("the recorded arrivals have no rate: they are not finite, or all at once", do=_FORM)
    times -= times[0]
    gaps = np.diff(times)
    return Arrivals(
        rate_per_s=len(gaps) / float(times[-1]),
        cv=min(20.0, float(gaps.std() / gaps.mean())),
        recorded_s=tuple(times.tolist()),
    )


_FORM = "Give a text file with one arrival time in seconds per line."
