"""The arithmetic of `make bench`: medians, ratios with their spread, goals met or missed. Pure.

A ratio is Shiplift over another side, taken round by round, because the sides of a round had the same conditions. A
throughput ratio above 1 and a p99 ratio below 1 are good.
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
BIG = ("digits-cnn", "encoder")  # on which Flask and torch must be far behind
_CONCURRENCY, _MIN_THROUGHPUT, _MAX_P99 = 16, 5.0, 1 / 6


class Spread(Record):
    """A median, with the extremes over the rounds."""

    median: float
    low: float
    high: float


class _Counted(Record):
    """What a side did under a load, and where the time went.

    Cores are CPU seconds per second: of the server by program, of the load generator, and of all other sides, which
    should be idle. `triton` has microseconds per request by part, as Triton counts them, and the mean batch size.
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
    """A side under a load: medians over the rounds."""

    model: str
    throughput_per_s: Spread
    p50_ms: Spread
    p99_ms: Spread


class Ratio(Record):
    """Shiplift over another side; spreads are the extremes over the rounds, intervals have 95 % confidence."""

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
    """A goal, what was measured, and, if it was missed, the evidence of what limits it."""

    goal: str
    model: str
    against: str
    measured: float
    met: bool
    limit: str


class Window(_Counted):
    """A measurement: one side under one load in one round."""

    round: int
    throughput_per_s: float
    p50_ms: float
    p99_ms: float


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile: the smallest value that at least `share` percent do not exceed.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("there are no values, so there is no percentile")
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share / 100 * len(ordered)) - 1)]


def spread(values: Sequence[float]) -> Spread:
    """The median and extremes of values."""
    return Spread(median=rounded(median(values)), low=rounded(min(values)), high=rounded(max(values)))


def rounded(value: float) -> float:
    """Rounds to four significant digits, because more are noise."""
    return float(f"{value:.4g}")


def cells(model: str, windows: Iterable[Window]) -> list[Cell]:
    """Summarizes windows by side and load."""
    groups: dict[tuple[int, str], list[Window]] = {}
    for window in windows:
        groups.setdefault((window.concurrency, window.side), []).append(window)
    return [_cell(model, side, concurrency, group) for (concurrency, side), group in groups.items()]


def _cell(model: str, side: str, concurrency: int, windows: Sequence[Window]) -> Cell:
    return Cell(
        model=model,
        side=side,
        concurrency=concurrency,
        throughput_per_s=spread([window.throughput_per_s for window in windows]),
        p50_ms=spread([window.p50_ms for window in windows]),
        p99_ms=spread([window.p99_ms for window in windows]),
        requests=sum(window.requests for window in windows),
        errors=sum(window.errors for window in windows),
        first_error=next((window.first_error for window in windows if window.first_error), ""),
        server_cores=_medians([window.server_cores for window in windows]),
        client_cores=rounded(median(window.client_cores for window in windows)),
        others_cores=rounded(median(window.others_cores for window in windows)),
        triton=_medians([window.triton for window in windows]),
    )


def _medians(tables: Sequence[dict[str, float]]) -> dict[str, float]:
    names = sorted({name for table in tables for name in table})
    return {name: rounded(median(table.get(name, 0.0) for table in tables)) for name in names}


def ratios(model: str, windows: Iterable[Window]) -> list[Ratio]:
    """The ratios of Shiplift over each other side under each load, paired by round."""
    sides: dict[tuple[int, str], dict[int, Window]] = {}
    for window in windows:
        sides.setdefault((window.concurrency, window.side), {})[window.round] = window
    return [
        _ratio(model, side, concurrency, sides[concurrency, OURS], theirs)
        for (concurrency, side), theirs in sorted(sides.items())
        if side != OURS and (concurrency, OURS) in sides
    ]


def _ratio(model: str, side: str, concurrency: int, ours: dict[int, Window], theirs: dict[int, Window]) -> Ratio:
    rounds = sorted(set(ours) & set(theirs))
    throughput = [ours[number].throughput_per_s / theirs[number].throughput_per_s for number in rounds]
    p99 = [ours[number].p99_ms / theirs[number].p99_ms for number in rounds]
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
    interval = ratio_interval(values)
    return rounded(interval.low), rounded(interval.high) if math.isfinite(interval.high) else None


def goals(ratios: Sequence[Ratio], cells: Sequence[Cell], ceilings: dict[str, dict[str, Any]]) -> list[Goal]:
    """Every goal that the measured models and sides can decide."""
    limits = Limits(cells, ceilings)
    pairs = sorted({(ratio.model, ratio.against) for ratio in ratios if ratio.against in RIVALS})
    return [
        *(goal for ratio in ratios for goal in _big_goals(ratio, limits)),
        *(
            goal
            for pair in pairs
            for goal in _noise_goals([ratio for ratio in ratios if (ratio.model, ratio.against) == pair], limits)
        ),
    ]


def _big_goals(ratio: Ratio, limits: "Limits") -> list[Goal]:
    if ratio.model not in BIG or ratio.against != "flask-torch" or ratio.concurrency != _CONCURRENCY:
        return []
    limit = limits.of(ratio)
    return [
        _goal(ratio, f"at least {_MIN_THROUGHPUT:.0f}x its throughput at concurrency {_CONCURRENCY}", ratio.throughput,
              ratio.throughput >= _MIN_THROUGHPUT, limit),
        _goal(ratio, f"at most 1/6 of its p99 at concurrency {_CONCURRENCY}", ratio.p99, ratio.p99 <= _MAX_P99, limit),
    ]  # fmt: skip


def _noise_goals(ratios: Sequence[Ratio], limits: "Limits") -> list[Goal]:
    """The goals against one side on one model, from the ratios at every concurrency."""
    slowest = min(ratios, key=lambda ratio: ratio.throughput)
    latest = max(ratios, key=lambda ratio: ratio.p99)
    return [
        _goal(slowest, "throughput never below it beyond noise", slowest.throughput, not any(map(below, ratios)),
              limits.of(min(filter(below, ratios), key=lambda ratio: ratio.throughput, default=slowest))),
        _goal(latest, "p99 never above it beyond noise", latest.p99, not any(map(above, ratios)),
              limits.of(max(filter(above, ratios), key=lambda ratio: ratio.p99, default=latest))),
    ]  # fmt: skip


def below(ratio: Ratio) -> bool:
    """Whether the throughput is lower than noise can explain: the whole interval is below 1."""
    high = ratio.throughput_interval[1]
    return high is not None and high < 1


def above(ratio: Ratio) -> bool:
    """Whether the p99 is higher than noise can explain: the whole interval is above 1."""
    return ratio.p99_interval[0] > 1


def _goal(ratio: Ratio, goal: str, measured: float, met: bool, limit: str) -> Goal:
    return Goal(
        goal=goal, model=ratio.model, against=ratio.against, measured=measured, met=met, limit="" if met else limit
    )


class Limits:
    """Measured evidence of what limits a ratio: who used the cores, where Triton spent time, what the model needs.

    `ceilings` says per model how many samples per second each engine reaches on this machine without a server.
    """

    def __init__(self, cells: Sequence[Cell], ceilings: dict[str, dict[str, Any]]) -> None:
        self._cells = {(cell.model, cell.side, cell.concurrency): cell for cell in cells}
        self._ceilings = ceilings

    def of(self, ratio: Ratio) -> str:
        """The evidence for a ratio."""
        ours = self._cells[ratio.model, OURS, ratio.concurrency]
        theirs = self._cells[ratio.model, ratio.against, ratio.concurrency]
        parts = [f"at concurrency {ratio.concurrency}", _used("Shiplift", ours), _used(ratio.against, theirs)]
        if ours.triton:
            parts.append("Triton, us per request: " + ", ".join(f"{k} {v:.0f}" for k, v in ours.triton.items()))
        if ceiling := self._ceilings.get(ratio.model, {}).get("samples_per_s"):
            rates = ", ".join(f"{name} {value:.0f}/s" for name, value in ceiling.items())
            parts.append(f"without a server the model reaches {rates}")
        return "; ".join(parts)


def _used(name: str, cell: Cell) -> str:
    programs = ", ".join(f"{program} {cores:.2f}" for program, cores in cell.server_cores.items() if cores >= 0.01)
    return f"{name} {cell.throughput_per_s.median:.0f}/s on {programs} cores (client {cell.client_cores:.2f})"
