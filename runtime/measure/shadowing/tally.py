"""What is counted of a shadow, in bounded memory however long it lasts: answers that agree, failures and latencies."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.model.tensors import Arrays, text_of
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.parts import parts
from shiplift.runtime.records.shadowing import Latency, OutputAgreement, Shadowed

Flags = NDArray[np.bool_]

PARTS = 12  # of the time, whose p99 are compared like rounds of a load test
_LEAST = 20  # requests of both, for a part of the time to say something
_STEP = math.log(1.01)  # a latency is known to within 1 %
_BINS = 2400  # up to six hours
_NEAR = 1.96  # standard errors: 95 %


class Latencies:
    """A histogram of latencies in microseconds, in bins that are 1 % wide."""

    def __init__(self) -> None:
        self._counts: NDArray[np.int64] = np.zeros(_BINS, np.int64)

    def add(self, us: int) -> None:
        """Counts a latency."""
        self._counts[min(_BINS - 1, int(math.log(us) / _STEP) if us > 1 else 0)] += 1

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self._counts.sum())

    def plus(self, other: "Latencies") -> "Latencies":
        """Those of both."""
        both = Latencies()
        both._counts = self._counts + other._counts
        return both

    def quantile_ms(self, quantile: float) -> float:
        """A quantile in milliseconds; NaN if there are none."""
        if not self.count:
            return math.nan
        rank = min(self.count, max(1, math.ceil(quantile * self.count)))
        found = int(np.searchsorted(np.cumsum(self._counts), rank))
        return math.exp((found + 0.5) * _STEP) / 1000

    def latency(self) -> Latency | None:
        """The median and the 99th percentile, whose bounds are those of its rank; None if there are none."""
        if not self.count:
            return None
        error = _NEAR * math.sqrt(0.99 * 0.01 / self.count)
        p50, p99, low, high = (self.quantile_ms(each) for each in (0.5, 0.99, 0.99 - error, min(1.0, 0.99 + error)))
        return Latency(p50_ms=p50, p99_ms=p99, low_ms=low, high_ms=high)


@dataclass(kw_only=True)
class _Output:
    rows: int = 0
    same: int = 0
    requests: int = 0


@dataclass(kw_only=True)
class Tally:
    """The counts of a shadow of `champion`, which gets a `share` of its requests for `for_s` seconds.

    `slices` are those of the validation set, such as `country=DE`.
    """

    champion: int
    share: float
    for_s: float
    slices: frozenset[str] = frozenset()
    requests: int = 0
    failed: int = 0
    dropped: int = 0
    outputs: dict[tuple[str, str], _Output] = field(default_factory=dict)
    _champion: list[Latencies] = field(default_factory=lambda: [Latencies() for _ in range(PARTS)])
    _challenger: list[Latencies] = field(default_factory=lambda: [Latencies() for _ in range(PARTS)])

    def took(self, us: int, elapsed_s: float, *, challenger: bool) -> None:
        """Counts how long a server took for a request, so many seconds after the beginning."""
        side = self._challenger if challenger else self._champion
        side[min(PARTS - 1, int(elapsed_s / self.for_s * PARTS))].add(us)

    def fails(self) -> None:
        """Counts a request that the champion answered and the challenger did not."""
        self.requests += 1
        self.failed += 1

    def answers(self, right: Arrays, given: Arrays, inputs: Arrays) -> None:
        """Compares the answers to a request: rows first, if all tensors have as many, or else as one row."""
        self.requests += 1
        for name, same in agreement(right, given).items():
            self._count(name, "", same)
            for part, rows in self._parts(inputs, len(same)):
                self._count(name, part, same[rows])

    def _count(self, name: str, part: str, same: Flags) -> None:
        output = self.outputs.setdefault((name, part), _Output())
        output.rows += len(same)
        output.same += int(same.sum())
        output.requests += 1

    def _parts(self, inputs: Arrays, rows: int) -> Iterator[tuple[str, Flags]]:
        """The known slices that rows belong to: nothing that a client sends becomes a new one."""
        for column in dict.fromkeys(each.partition("=")[0] for each in self.slices):
            values = inputs.get(column)
            if values is None or values.size != rows:
                continue
            names = np.array([f"{column}={_text(value)}" for value in values.ravel()])
            for part in sorted(self.slices.intersection(names.tolist())):
                yield part, names == part

    def result(self, seconds: float) -> Shadowed:
        """The record of what was counted."""
        whole = [side[0] for side in (self._champion, self._challenger)]
        for part in range(1, PARTS):
            whole = [whole[0].plus(self._champion[part]), whole[1].plus(self._challenger[part])]
        champion, challenger = whole
        return Shadowed(
            champion=self.champion,
            share=self.share,
            seconds=round(seconds, 1),
            requests=self.requests,
            failed=self.failed,
            dropped=self.dropped,
            champion_latency=champion.latency(),
            challenger_latency=challenger.latency(),
            p99_ratios=tuple(self._ratios()),
            outputs=tuple(
                OutputAgreement(output=name, slice=part, rows=each.rows, same=each.same, requests=each.requests)
                for (name, part), each in self.outputs.items()
            ),
        )

    def _ratios(self) -> list[float]:
        pairs = zip(self._champion, self._challenger, strict=True)
        known = [pair for pair in pairs if min(each.count for each in pair) >= _LEAST]
        return [challenger.quantile_ms(0.99) / champion.quantile_ms(0.99) for champion, challenger in known]


def agreement(right: Arrays, given: Arrays) -> Mapping[str, Flags]:
    """In which rows each output of an answer is the same as in the other answer, by output."""
    if not right and not given:
        return {}
    rows = _rows(right, given)
    original, served = (Answers.of(_by_row(side, rows)) if side else None for side in (right, given))
    names = list(dict.fromkeys([*right, *given]))
    if original is None or served is None:
        return {name: np.zeros(rows, np.bool_) for name in names}
    _errors, *compared = parts(original, served)
    return {name: ~part.wrong for name, part in zip(names, compared, strict=True)}


def _text(value: Any) -> str:
    return text_of(value, errors="replace") if isinstance(value, bytes | str) else str(value)


def _rows(right: Arrays, given: Arrays) -> int:
    counts = {array.shape[0] if array.ndim else -1 for side in (right, given) for array in side.values()}
    return counts.pop() if len(counts) == 1 and min(counts) > 0 else 1


def _by_row(arrays: Arrays, rows: int) -> Arrays:
    if all(array.ndim and array.shape[0] == rows for array in arrays.values()):
        return arrays
    return {name: array.reshape(1, *array.shape) for name, array in arrays.items()}
