"""The arithmetic of `make bench`: medians, ratios with their spread, goals met or missed. Pure.

A ratio is Shiplift over another side, taken round by round, because the sides of a round had the same conditions. A
throughput ratio above 1 and a p99 ratio below 1 are good.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from pydantic import Field

from shiplift.runtime.gates.statistics import ratio_interval
from shiplift.runtime.records.base import Record

OURS, BARE = "shiplift", "bare engine"
FLASK = "flask-torch"
_CONCURRENCY, _MOST_CLIENTS = 16, 64
_OVER_FLASK = {"encoder": 6.0, "resnet50": 12.0, "digits-cnn": 8.0, "boosting": 8.0}  # least throughput
_P99_OF_FLASK = {"encoder": 6, "resnet50": 10}  # at most a p99 of one over this
_COMPUTE_BOUND = ("encoder", "resnet50")
OVER_RIVALS = {"fp32": 3.0, "bf16": 2.0}  # least throughput over those in a precision, on the compute-bound models
_OF_BARE = 0.85  # least share of what the engine alone does


class Spread(Record):
    """A median, with the extremes over the rounds."""

    median: float
    low: float
    high: float


class _Counted(Record):
    """What a side did under a load, and where the time went.

    Cores are CPU seconds per second: of the server by program, of the load generator, and of all other sides, which
    should be idle. `server_cpu_ms` is the CPU time of the server's processes per answer, in milliseconds. `triton` has
    microseconds per request by part, as Triton counts them, and the mean batch size.
    """

    side: str
    concurrency: int
    requests: int
    errors: int
    first_error: str = ""
    server_cores: dict[str, float]
    server_cpu_ms: float
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


class Growth(Record):
    """Shiplift's throughput with 64 clients over that with 16, round by round."""

    throughput: float
    interval: tuple[float, float | None]


class Facts(Record):
    """What goals need to know about a model besides its windows.

    `precisions` are those that the sides compute in, `bare_per_s` the samples per second of the promoted package's
    engine alone, `ceilings` the samples per second that engines reach without a server, by what they run.
    """

    precisions: dict[str, str] = Field(default_factory=dict)
    bare_per_s: float | None = None
    growth: Growth | None = None
    ceilings: dict[str, float] = Field(default_factory=dict)


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
        server_cpu_ms=rounded(median(window.server_cpu_ms for window in windows)),
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


def growth(windows: Iterable[Window]) -> Growth | None:
    """How Shiplift's throughput changes from 16 to 64 clients; None without rounds that have both."""
    rates: dict[int, dict[int, float]] = {_CONCURRENCY: {}, _MOST_CLIENTS: {}}
    for window in windows:
        if window.side == OURS and window.concurrency in rates:
            rates[window.concurrency][window.round] = window.throughput_per_s
    few, many = rates[_CONCURRENCY], rates[_MOST_CLIENTS]
    changes = [many[number] / few[number] for number in sorted(set(few) & set(many))]
    if not changes:
        return None
    return Growth(throughput=rounded(median(changes)), interval=_interval(changes))


def goals(ratios: Sequence[Ratio], cells: Sequence[Cell], facts: Mapping[str, Facts]) -> list[Goal]:
    """Every goal that the measured models and sides can decide, model by model."""
    limits = Bottlenecks(cells, facts)
    result: list[Goal] = []
    for model, known in facts.items():
        of_model = [ratio for ratio in ratios if ratio.model == model and ratio.against in known.precisions]
        at_16 = [ratio for ratio in of_model if ratio.concurrency == _CONCURRENCY]
        result += [goal for ratio in at_16 if ratio.against == FLASK for goal in _flask_goals(ratio, limits)]
        if model in _COMPUTE_BOUND:
            result += _precision_goals(at_16, known.precisions, limits)
        for side in dict.fromkeys(ratio.against for ratio in of_model):
            result += _noise_goals([ratio for ratio in of_model if ratio.against == side], limits)
        result += _own_goals(model, cells, known, limits)
    return result


def _flask_goals(ratio: Ratio, limits: "Bottlenecks") -> list[Goal]:
    least, part = _OVER_FLASK.get(ratio.model), _P99_OF_FLASK.get(ratio.model)
    limit = limits.of(ratio)
    goals = []
    if least:
        goals.append(
            _goal(
                ratio,
                f"at least {least:.0f}x its throughput at concurrency {_CONCURRENCY}",
                ratio.throughput,
                ratio.throughput >= least,
                limit,
            )
        )
    if part:
        goals.append(
            _goal(
                ratio,
                f"at most 1/{part} of its p99 at concurrency {_CONCURRENCY}",
                ratio.p99,
                ratio.p99 <= 1 / part,
                limit,
            )
        )
    return goals


def _precision_goals(ratios: Sequence[Ratio], precisions: Mapping[str, str], limits: "Bottlenecks") -> list[Goal]:
    """Three times every rival in fp32, and twice the best of those in bf16."""
    fp32 = [ratio for ratio in ratios if precisions[ratio.against] == "fp32"]
    bf16 = [ratio for ratio in ratios if precisions[ratio.against] == "bf16"]
    best = sorted(bf16, key=lambda ratio: ratio.throughput)[:1]
    wanted = [(ratio, OVER_RIVALS["fp32"], "a rival in fp32") for ratio in fp32]
    wanted += [(ratio, OVER_RIVALS["bf16"], "the best rival in bf16") for ratio in best]
    return [
        _goal(
            ratio,
            f"at least {least:.0f}x the throughput of {rival} at concurrency {_CONCURRENCY}",
            ratio.throughput,
            ratio.throughput >= least,
            limits.of(ratio),
        )
        for ratio, least, rival in wanted
    ]


def _own_goals(model: str, cells: Sequence[Cell], known: Facts, limits: "Bottlenecks") -> list[Goal]:
    """The goals that compare Shiplift with its own engine, and with itself under fewer clients."""
    served = {cell.concurrency: cell for cell in cells if (cell.model, cell.side) == (model, OURS)}
    goals = []
    if known.bare_per_s and _CONCURRENCY in served:
        share = served[_CONCURRENCY].throughput_per_s.median / known.bare_per_s
        limit = limits.alone(served[_CONCURRENCY])
        goals.append(
            Goal(
                goal=f"at least {_OF_BARE:.0%} of the engine's bare rate at concurrency {_CONCURRENCY}",
                model=model,
                against=BARE,
                measured=rounded(share),
                met=share >= _OF_BARE,
                limit="" if share >= _OF_BARE else limit,
            )
        )
    if known.growth:
        high = known.growth.interval[1]
        met = high is None or high >= 1
        goals.append(
            Goal(
                goal=f"no fall from {_CONCURRENCY} to {_MOST_CLIENTS} clients beyond noise",
                model=model,
                against=OURS,
                measured=known.growth.throughput,
                met=met,
                limit="" if met else limits.alone(served[_MOST_CLIENTS]),
            )
        )
    return goals


def _noise_goals(ratios: Sequence[Ratio], limits: "Bottlenecks") -> list[Goal]:
    """The goals against one side on one model, from the ratios at every concurrency."""
    slowest = min(ratios, key=lambda ratio: ratio.throughput)
    latest = max(ratios, key=lambda ratio: ratio.p99)
    return [
        _goal(
            slowest,
            "throughput never below it beyond noise",
            slowest.throughput,
            not any(map(below, ratios)),
            limits.of(min(filter(below, ratios), key=lambda ratio: ratio.throughput, default=slowest)),
        ),
        _goal(
            latest,
            "p99 never above it beyond noise",
            latest.p99,
            not any(map(above, ratios)),
            limits.of(max(filter(above, ratios), key=lambda ratio: ratio.p99, default=latest)),
        ),
    ]


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


class Bottlenecks:
    """Measured evidence of what limits a ratio: who used the cores, where Triton spent time, what the model needs.

    Without a server, engines reach the rates in a model's facts.
    """

    def __init__(self, cells: Sequence[Cell], facts: Mapping[str, Facts]) -> None:
        self._cells = {(cell.model, cell.side, cell.concurrency): cell for cell in cells}
        self._facts = facts

    def of(self, ratio: Ratio) -> str:
        """The evidence for a ratio."""
        ours = self._cells[ratio.model, OURS, ratio.concurrency]
        theirs = self._cells[ratio.model, ratio.against, ratio.concurrency]
        return self._text(ours, [_used("Shiplift", ours), _used(ratio.against, theirs)])

    def alone(self, ours: Cell) -> str:
        """The evidence for what Shiplift does by itself."""
        return self._text(ours, [_used("Shiplift", ours)])

    def _text(self, ours: Cell, used: list[str]) -> str:
        parts = [f"at concurrency {ours.concurrency}", *used]
        if ours.triton:
            parts.append("Triton, us per request: " + ", ".join(f"{k} {v:.0f}" for k, v in ours.triton.items()))
        facts = self._facts.get(ours.model, Facts())
        alone = facts.ceilings | ({"its engine": facts.bare_per_s} if facts.bare_per_s else {})
        if alone:
            rates = ", ".join(f"{name} {value:.0f}/s" for name, value in alone.items())
            parts.append(f"without a server the model reaches {rates}")
        return "; ".join(parts)


def _used(name: str, cell: Cell) -> str:
    programs = ", ".join(f"{program} {cores:.2f}" for program, cores in cell.server_cores.items() if cores >= 0.01)
    return (
        f"{name} {cell.throughput_per_s.median:.0f}/s on {programs} cores, {cell.server_cpu_ms:.3g} CPU ms per answer"
        f" (client {cell.client_cores:.2f})"
    )
