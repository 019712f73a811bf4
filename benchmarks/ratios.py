"""What `make bench` says of its measurements: medians, ratios with their spread, goals met or missed. Pure.

A ratio is Shiplift over the other, taken round by round, since the sides of one round met the same machine: a
throughput above 1 and a p99 below 1 are good.
"""

import math
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from pydantic import Field

from shiplift.runtime.gates.statistics import ratio_interval
from shiplift.runtime.records.base import Record

OURS = "shiplift"
RIVALS = ("flask-torch", "fastapi-onnxruntime", "mlflow-serve", "triton-default")
BIG = ("digits-cnn", "encoder")  # where Flask and torch must be far behind
_AT, _THROUGHPUT, _P99 = 16, 5.0, 1 / 6


class Spread(Record):
    """A median and its extremes over the rounds."""

    median: float
    low: float
    high: float


class _Counted(Record):
    """What one side did under one load, and where the time went.

    Cores are CPU seconds a second: of the server by program, of the load generator, and of every other side, which
    should be idle. `triton` are microseconds a request by part, as Triton counts them, and the mean batch.
    """

    side: str
    concurrency: int
    requests: int
    errors: int
    first_error: str = ""
    server_cores: dict[str, float]
    client_cores: float
    others_cores: float
    triton: dict[str, float] = Field(default_factory=dict)


class Cell(_Counted):
    """One side under one load: medians over rounds."""

    model: str
    throughput_per_s: Spread
    p50_ms: Spread
    p99_ms: Spread


class Ratio(Record):
    """Shiplift over another side. The spreads are the extremes over the rounds, the intervals hold with 95 %."""

    model: str
    against: str
    concurrency: int
    throughput: float
    p99: float
    throughput_spread: tuple[float, float]
    p99_spread: tuple[float, float]
    throughput_interval: tuple[float, float | None]
    p99_interval: tuple[float, float | None]


class Goal(Record):
    """What was wanted, what was measured, and what stands in the way where it was missed."""

    goal: str
    model: str
    against: str
    measured: float
    met: bool
    limit: str


class Window(_Counted):
    """One measurement: a side, a load, a round."""

    round: int
    throughput_per_s: float
    p50_ms: float
    p99_ms: float


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile: the smallest value that `share` percent of all are not above.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("no values, so no percentile")
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share / 100 * len(ordered)) - 1)]


def spread(values: Sequence[float]) -> Spread:
    """Median and extremes."""
    return Spread(median=rounded(median(values)), low=rounded(min(values)), high=rounded(max(values)))


def rounded(value: float) -> float:
    """Four significant digits: more are noise."""
    return float(f"{value:.4g}")


def cells(model: str, windows: Iterable[Window]) -> list[Cell]:
    """Every side under every load."""
    groups: dict[tuple[int, str], list[Window]] = {}
    for window in windows:
        groups.setdefault((window.concurrency, window.side), []).append(window)
    return [_cell(model, side, concurrency, found) for (concurrency, side), found in groups.items()]


def _cell(model: str, side: str, concurrency: int, found: Sequence[Window]) -> Cell:
    return Cell(
        model=model,
        side=side,
        concurrency=concurrency,
        throughput_per_s=spread([one.throughput_per_s for one in found]),
        p50_ms=spread([one.p50_ms for one in found]),
        p99_ms=spread([one.p99_ms for one in found]),
        requests=sum(one.requests for one in found),
        errors=sum(one.errors for one in found),
        first_error=next((one.first_error for one in found if one.first_error), ""),
        server_cores=_medians([one.server_cores for one in found]),
        client_cores=rounded(median(one.client_cores for one in found)),
        others_cores=rounded(median(one.others_cores for one in found)),
        triton=_medians([one.triton for one in found]),
    )


def _medians(tables: Sequence[dict[str, float]]) -> dict[str, float]:
    names = sorted({name for table in tables for name in table})
    return {name: rounded(median(table.get(name, 0.0) for table in tables)) for name in names}


def ratios(model: str, windows: Iterable[Window]) -> list[Ratio]:
    """Shiplift over each other side under each load, paired by round."""
    by: dict[tuple[int, str], dict[int, Window]] = {}
    for window in windows:
        by.setdefault((window.concurrency, window.side), {})[window.round] = window
    return [
        _ratio(model, side, concurrency, by[concurrency, OURS], theirs)
        for (concurrency, side), theirs in sorted(by.items())
        if side != OURS and (concurrency, OURS) in by
    ]


def _ratio(model: str, side: str, concurrency: int, ours: dict[int, Window], theirs: dict[int, Window]) -> Ratio:
    rounds = sorted(set(ours) & set(theirs))
    throughput = [ours[at].throughput_per_s / theirs[at].throughput_per_s for at in rounds]
    p99 = [ours[at].p99_ms / theirs[at].p99_ms for at in rounds]
    return Ratio(
        model=model,
        against=side,
        concurrency=concurrency,
        throughput=rounded(median(throughput)),
        p99=rounded(median(p99)),
        throughput_spread=(rounded(min(throughput)), rounded(max(throughput))),
        p99_spread=(rounded(min(p99)), rounded(max(p99))),
        throughput_interval=_interval(throughput),
        p99_interval=_interval(p99),
    )


def _interval(values: Sequence[float]) -> tuple[float, float | None]:
    found = ratio_interval(values)
    return rounded(found.low), rounded(found.high) if math.isfinite(found.high) else None


def goals(found: Sequence[Ratio], found_cells: Sequence[Cell], ceilings: dict[str, dict[str, Any]]) -> list[Goal]:
    """Every goal that the measured models and sides can decide."""
    limit = Limits(found_cells, ceilings)
    wanted: list[Goal] = []
    for one in found:
        if one.model in BIG and one.against == "flask-torch" and one.concurrency == _AT:
            said = limit.of(one)
            wanted += [
                _goal(one, f"at least {_THROUGHPUT:.0f}x its throughput at concurrency {_AT}", one.throughput,
                      one.throughput >= _THROUGHPUT, said),
                _goal(one, f"at most 1/6 of its p99 at concurrency {_AT}", one.p99, one.p99 <= _P99, said),
            ]  # fmt: skip
    for model, against in sorted({(one.model, one.against) for one in found if one.against in RIVALS}):
        of = [one for one in found if (one.model, one.against) == (model, against)]
        slow = min(of, key=lambda one: one.throughput)
        late = max(of, key=lambda one: one.p99)
        wanted += [
            _goal(slow, "throughput never below it beyond noise", slow.throughput, not any(map(below, of)),
                  limit.of(min(filter(below, of), key=lambda one: one.throughput, default=slow))),
            _goal(late, "p99 never above it beyond noise", late.p99, not any(map(above, of)),
                  limit.of(max(filter(above, of), key=lambda one: one.p99, default=late))),
        ]  # fmt: skip
    return wanted


def below(ratio: Ratio) -> bool:
    """Whether the throughput is lower than noise explains: all of the interval is under 1."""
    high = ratio.throughput_interval[1]
    return high is not None and high < 1


def above(ratio: Ratio) -> bool:
    """Whether the p99 is higher than noise explains: all of the interval is over 1."""
    return ratio.p99_interval[0] > 1


def _goal(ratio: Ratio, goal: str, measured: float, met: bool, limit: str) -> Goal:
    return Goal(
        goal=goal, model=ratio.model, against=ratio.against, measured=measured, met=met, limit="" if met else limit
    )


class Limits:
    """What stood in the way, in measured words: who used the cores, where Triton spent its time, what the model takes.

    `ceilings` say per model what each engine reaches in this machine with no server around it, in samples a second.
    """

    def __init__(self, found: Sequence[Cell], ceilings: dict[str, dict[str, Any]]) -> None:
        self._cells = {(one.model, one.side, one.concurrency): one for one in found}
        self._ceilings = ceilings

    def of(self, ratio: Ratio) -> str:
        """Evidence for one ratio."""
        ours = self._cells[ratio.model, OURS, ratio.concurrency]
        theirs = self._cells[ratio.model, ratio.against, ratio.concurrency]
        parts = [f"at concurrency {ratio.concurrency}", _used("Shiplift", ours), _used(ratio.against, theirs)]
        if ours.triton:
            parts.append("Triton, us a request: " + ", ".join(f"{k} {v:.0f}" for k, v in ours.triton.items()))
        if ceiling := self._ceilings.get(ratio.model, {}).get("samples_per_s"):
            said = ", ".join(f"{name} {value:.0f}/s" for name, value in ceiling.items())
            parts.append(f"with no server around it the model reaches {said}")
        return "; ".join(parts)


def _used(name: str, cell: Cell) -> str:
    programs = ", ".join(f"{program} {cores:.2f}" for program, cores in cell.server_cores.items() if cores >= 0.01)
    return f"{name} {cell.throughput_per_s.median:.0f}/s on {programs} cores (client {cell.client_cores:.2f})"
