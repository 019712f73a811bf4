"""Gates as policy: rules that a team writes, each with a metric, a comparison, a limit with a unit, and a severity.

A rule is checked when the spec is read: the limit's unit must fit the metric, and the comparison must point the right
way. `runtime.gates.policy` says how a metric is read from a release's measurements.
"""

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from shiplift.runtime.spec.fields import Section

Comparison = Literal["<=", ">="]
_LIMIT = re.compile(r"^\s*(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(?P<unit>\S.*?)?\s*$")


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A metric's unit, and the factors that convert other units of the same kind to it."""

    name: str
    kind: str
    others: Mapping[str, float]


_TIME = Unit(name="ms", kind="a time", others={"us": 0.001, "µs": 0.001, "ms": 1, "s": 1000, "min": 60_000})
_MEMORY = Unit(
    name="MiB",
    kind="a size",
    others={
        "B": 2**-20,
        "KiB": 2**-10,
        "MiB": 1,
        "GiB": 2**10,
        "TiB": 2**20,
        "kB": 1e3 / 2**20,
        "MB": 1e6 / 2**20,
        "GB": 1e9 / 2**20,
    },
)
_PER_S = {
    f"{noun}/{per}": 1 / s
    for noun in ("", "1", "infer", "inferences", "requests", "req")
    for per, s in (("s", 1), ("min", 60), ("h", 3600))
}
_RATE = Unit(name="inferences/s", kind="a rate", others=_PER_S)
_TOKENS = Unit(name="tokens/s", kind="a rate of tokens", others={"tokens/s": 1, "tokens/min": 1 / 60, "/s": 1})
_PERCENT = Unit(name="%", kind="a percentage", others={"%": 1, "percent": 1})
_COUNT = Unit(name="requests", kind="a count", others={"requests": 1})
_PLAIN = Unit(name="", kind="a plain number", others={})


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric that a rule may limit: its unit, which direction is better, and its kind of slices."""

    unit: Unit
    better: Literal["smaller", "larger", "either"] = "smaller"
    slices: Literal["", "load", "data"] = ""


METRICS: dict[str, Metric] = {
    **{f"p{n}_ms": Metric(unit=_TIME, slices="load") for n in (50, 90, 95, 99)},
    "queue_ms": Metric(unit=_TIME, slices="load"),
    "compute_ms": Metric(unit=_TIME, slices="load"),
    "throughput_per_s": Metric(unit=_RATE, better="larger", slices="load"),
    "ttft_p99_ms": Metric(unit=_TIME, slices="load"),
    "inter_token_p99_ms": Metric(unit=_TIME, slices="load"),
    "tokens_per_s": Metric(unit=_TOKENS, better="larger", slices="load"),
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


class Rule(Section):
    """One gate: `metric` `comparison` `limit`, as `p95_ms <= 40 ms`.

    `limit` is a number in the metric's own unit, or text with another unit of its kind ("0.05 s", "2 GiB", "300/s").
    `slice` narrows the metric: `concurrency=16` or `rate=200` for load test metrics (default: the operating point), or
    a slice of the validation data such as `label=3` for `score`. `target` is the target to which it applies (empty:
    all). A rule of severity `warn` is reported but never stops a release.
    """

    metric: str
    comparison: Comparison
    limit: float
    severity: Literal["block", "warn"] = "block"
    slice: str = Field("", max_length=200)
    target: str = ""

    @model_validator(mode="before")
    @classmethod
    def _in_the_metrics_unit(cls, rule: object) -> object:
        if not isinstance(rule, dict) or not isinstance(rule.get("limit"), str):
            return rule
        known = METRICS.get(str(rule.get("metric")))
        return {**rule, "limit": quantity(rule["limit"], known.unit, rule["metric"])} if known else rule

    @field_validator("metric")
    @classmethod
    def _known(cls, metric: str) -> str:
        if metric in METRICS:
            return metric
        matches = difflib.get_close_matches(metric, METRICS, n=1)
        hint = f"; did you mean {matches[0]!r}?" if matches else f"; there are {', '.join(METRICS)}"
        raise ValueError(f"there is no metric {metric!r}{hint}")

    @field_validator("limit")
    @classmethod
    def _finite(cls, limit: float) -> float:
        if not math.isfinite(limit):
            raise ValueError("must be a finite number")
        return limit

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        metric = METRICS[self.metric]
        sensible = {"smaller": "<=", "larger": ">="}.get(metric.better, self.comparison)
        if self.comparison != sensible:
            raise ValueError(f"a {metric.better} {self.metric} is better: write `{sensible}`")
        if self.slice and not metric.slices:
            raise ValueError(f"{self.metric} has no slices")
        if self.slice and metric.slices == "load" and not re.fullmatch(r"(concurrency|rate)=\d+(\.\d+)?", self.slice):
            raise ValueError(f"{self.slice!r} is not a slice of {self.metric}: write `concurrency=16` or `rate=200`")
        return self

    @property
    def unit(self) -> str:
        """The unit of `limit`."""
        return METRICS[self.metric].unit.name

    @property
    def name(self) -> str:
        """The name of the check."""
        return f"{self.metric} {self.slice}".strip()


class Policy(Section):
    """Rules in addition to those of the sections `quality` and `slo`."""

    rules: tuple[Rule, ...] = ()


def quantity(text: str, unit: Unit, metric: str) -> float:
    """Converts a limit's text to the metric's unit.

    Raises:
        ValueError: the text is not a number with a unit of that kind.
    """
    match = _LIMIT.match(text)
    if not match:
        raise ValueError(f"limit {text!r} is not a number with a unit")
    name = match["unit"]
    if name is None:
        return float(match["number"])
    if name not in unit.others:
        known = f": use {', '.join(filter(None, unit.others))}" if unit.others else ", without a unit"
        raise ValueError(f"{metric} is {unit.kind}, {text!r} is not{known}")
    return float(match["number"]) * unit.others[name]
