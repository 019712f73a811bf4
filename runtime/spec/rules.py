"""Gates as policy: rules a team writes, each a metric, a comparison, a limit in a unit, and what a breach means.

A rule is checked when the spec is read: the limit's unit has to be one of the metric's, and the comparison has to be
the way round that makes sense. What a metric reads from a release's measurements is in `runtime.gates.policy`.
"""

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from shiplift.runtime.records.base import Record

Comparison = Literal["<=", ">="]
_LIMIT = re.compile(r"^\s*(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(?P<unit>\S.*?)?\s*$")


@dataclass(frozen=True, kw_only=True)
class Unit:
    """What a metric is counted in, and how many of it one of another unit of the same kind is."""

    name: str
    kind: str
    others: Mapping[str, float]


_TIME = Unit(name="ms", kind="a time", others={"us": 0.001, "µs": 0.001, "ms": 1, "s": 1000, "min": 60_000})
_MEMORY = Unit(
    name="MiB",
    kind="a size",
    others={
        "B": 2**-20, "KiB": 2**-10, "MiB": 1, "GiB": 2**10, "TiB": 2**20, "kB": 1e3 / 2**20, "MB": 1e6 / 2**20,
        "GB": 1e9 / 2**20,
    },
)  # fmt: skip
_PER_S = {f"{what}/{per}": 1 / s for what in ("", "1", "infer", "inferences", "requests", "req")
          for per, s in (("s", 1), ("min", 60), ("h", 3600))}  # fmt: skip
_RATE = Unit(name="inferences/s", kind="a rate", others=_PER_S)
_PERCENT = Unit(name="%", kind="a percentage", others={"%": 1, "percent": 1})
_COUNT = Unit(name="requests", kind="a count", others={"requests": 1})
_PLAIN = Unit(name="", kind="a plain number", others={})


@dataclass(frozen=True, kw_only=True)
class Metric:
    """What a rule may limit: its unit, which way is better, and which slices it has."""

    unit: Unit
    better: Literal["smaller", "larger", "either"] = "smaller"
    slices: Literal["", "load", "data"] = ""


METRICS: dict[str, Metric] = {
    **{f"p{n}_ms": Metric(unit=_TIME, slices="load") for n in (50, 90, 95, 99)},
    "queue_ms": Metric(unit=_TIME, slices="load"),
    "compute_ms": Metric(unit=_TIME, slices="load"),
    "throughput_per_s": Metric(unit=_RATE, better="larger", slices="load"),
    "open_p99_ms": Metric(unit=_TIME, slices="load"),
    "max_rate_per_s": Metric(unit=_RATE, better="larger"),
    "failures": Metric(unit=_COUNT),
    "memory_mb": Metric(unit=_MEMORY),
    "score": Metric(unit=_PLAIN, better="either", slices="data"),
    "score_worse": Metric(unit=_PLAIN),
    "parity_max_abs": Metric(unit=_PLAIN),
    "parity_max_rel": Metric(unit=_PLAIN),
    "p99_worse_percent": Metric(unit=_PERCENT),
    "throughput_worse_percent": Metric(unit=_PERCENT),
}


class Rule(Record):
    """One gate: `metric` `comparison` `limit`, as `p95_ms <= 40 ms`.

    `limit` is a number in the metric's own unit or a text with another of its kind ("0.05 s", "2 GiB", "300/s").
    `slice` narrows it: `concurrency=16` or `rate=200` for what a load test measures (else: the operating point), a
    slice of the validation data for `score`, as `label=3`. `target` is the target it is for (empty: any). A rule of
    severity `warn` is told and never stops a release.
    """

    metric: str
    comparison: Comparison
    limit: float
    severity: Literal["block", "warn"] = "block"
    slice: str = Field("", max_length=200)
    target: str = ""

    @model_validator(mode="before")
    @classmethod
    def _in_the_metrics_unit(cls, given: object) -> object:
        if not isinstance(given, dict) or not isinstance(given.get("limit"), str):
            return given
        known = METRICS.get(str(given.get("metric")))
        return {**given, "limit": quantity(given["limit"], known.unit, given["metric"])} if known else given

    @field_validator("metric")
    @classmethod
    def _known(cls, metric: str) -> str:
        if metric in METRICS:
            return metric
        near = difflib.get_close_matches(metric, METRICS, n=1)
        meant = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(METRICS)}"
        raise ValueError(f"there is no metric {metric!r}{meant}")

    @field_validator("limit")
    @classmethod
    def _finite(cls, limit: float) -> float:
        if not math.isfinite(limit):
            raise ValueError("must be a finite number")
        return limit

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        metric = METRICS[self.metric]
        wanted = {"smaller": "<=", "larger": ">="}.get(metric.better, self.comparison)
        if self.comparison != wanted:
            raise ValueError(f"a {metric.better} {self.metric} is better: write `{wanted}`")
        if self.slice and not metric.slices:
            raise ValueError(f"{self.metric} has no slices")
        if self.slice and metric.slices == "load" and not re.fullmatch(r"(concurrency|rate)=\d+(\.\d+)?", self.slice):
            raise ValueError(f"slice {self.slice!r} of {self.metric} is none: write `concurrency=16` or `rate=200`")
        return self

    @property
    def unit(self) -> str:
        """The unit of `limit`."""
        return METRICS[self.metric].unit.name

    @property
    def name(self) -> str:
        """What the check is called."""
        return f"{self.metric} {self.slice}".strip()


class Policy(Record):
    """Rules beside those that the sections `quality` and `slo` stand for."""

    rules: tuple[Rule, ...] = ()


def quantity(text: str, unit: Unit, metric: str) -> float:
    """A limit's text in the metric's unit.

    Raises:
        ValueError: it is not a number with a unit of that kind.
    """
    found = _LIMIT.match(text)
    if not found:
        raise ValueError(f"limit {text!r} is not a number with a unit")
    name = found["unit"]
    if name is None:
        return float(found["number"])
    if name not in unit.others:
        known = f": use {', '.join(one for one in unit.others if one)}" if unit.others else ", without a unit"
        raise ValueError(f"{metric} is {unit.kind}, {text!r} is not{known}")
    return float(found["number"]) * unit.others[name]
