"""The gates' arithmetic: pure functions from measurements and limits to checks that explain themselves.

Three places judge with them: `package` (quality, so that a hopeless model stops before it is measured), `gate` (all)
and a replay of an old release's evidence under another policy. What the sections `quality` and `slo` say are rules
like any others; they have names of their own since everyone has them.

A check is inconclusive where its number is missing, unstable, or closer to the limit than its own error.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from shiplift.runtime.gates.statistics import Interval, ratio_interval, rounds_to_decide, smallest_difference
from shiplift.runtime.precision import metrics
from shiplift.runtime.records.measurement import Comparison, LoadPoint, LoadReport
from shiplift.runtime.records.model import Exported, ParityCase
from shiplift.runtime.records.precision import Metric
from shiplift.runtime.records.release import which_target_serves
from shiplift.runtime.records.serving import Champion, Package
from shiplift.runtime.records.verdict import Check, Evidence, Outcome, Scored, Verdict
from shiplift.runtime.spec.measurement import ComparisonTarget, Slo
from shiplift.runtime.spec.model import Data, Parity, Quality
from shiplift.runtime.spec.rules import Policy, Rule

Severity = Literal["block", "warn"]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Everything a release is judged by."""

    quality: Quality
    data: Data
    slo: Slo
    policy: Policy


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A measured number, between which bounds it is sure to lie, and what would make it surer."""

    value: float | None
    low: float
    high: float
    said: str
    more: str = ""

    @classmethod
    def exact(cls, value: float, said: str) -> "Reading":
        """A number taken at its word."""
        return cls(value=value, low=value, high=value, said=said)

    @classmethod
    def missing(cls, why: str) -> "Reading":
        """A number that is not there."""
        return cls(value=None, low=-math.inf, high=math.inf, said=why)


def judge(evidence: Evidence, limits: Limits) -> tuple[Check, ...]:
    """Every check that the evidence and the limits give; the same ones for the same arguments."""
    mine, theirs, load = evidence.challenger, evidence.champion, evidence.load_report
    checks = [parity_check(evidence.parity, limits.quality)]
    score = score_check(mine.score, mine.samples, mine.metric, limits.quality, limits.data)
    checks += [score] if score else []
    if load is not None:
        checks += load_checks(load, limits.slo)
        checks += champion_checks(load.comparison, theirs, mine, limits.slo, load.uncompared)
    checks += rule_checks(evidence, limits)
    checks += targets_check(mine.target, evidence.not_served)
    return tuple(checks)


def verdict(evidence: Evidence, limits: Limits) -> Verdict:
    """The checks together, with what they rest on."""
    return Verdict.of(judge(evidence, limits)).model_copy(update={"evidence": evidence})


def evidence_of(
    exported: Exported, package: Package, load_report: LoadReport, champion: Champion, not_served: tuple[str, ...] = ()
) -> Evidence:
    """What a verdict rests on, without the bytes it was measured with. `not_served` names the other targets."""
    return Evidence(
        parity=exported.parity,
        challenger=scored(package),
        champion=scored(champion.package) if champion.package else None,
        load_report=load_report.model_copy(update={"raw": None}),
        not_served=not_served,
    )


def scored(package: Package) -> Scored:
    """A package's answers, without its bytes."""
    return Scored(**package.model_dump(include=set(Scored.model_fields)))


def targets_check(serving: str, not_served: tuple[str, ...]) -> Iterator[Check]:
    """A warning where the spec has more targets than one: nobody should take the others for served."""
    if not_served:
        reason, wanted = which_target_serves(serving, not_served), 1.0 + len(not_served)
        yield _check("targets", 1.0, wanted, "targets served", Outcome.FAIL, reason, severity="warn")


def rule_checks(evidence: Evidence, limits: Limits) -> Iterator[Check]:
    """The rules that are for this target."""
    for rule in limits.policy.rules:
        if rule.target in ("", evidence.challenger.target):
            yield _decided(
                rule.name, read(rule, evidence, limits), rule.limit, rule.unit,
                upper=rule.comparison == "<=", severity=rule.severity,
            )  # fmt: skip


def read(rule: Rule, evidence: Evidence, limits: Limits) -> Reading:
    """What a rule's metric was."""
    if rule.metric.startswith("parity_"):
        field = rule.metric.removeprefix("parity_")
        worst = max((getattr(case, field) for case in evidence.parity), key=_badness, default=math.nan)
        return Reading.exact(worst, f"{field} {worst:.3g}")
    if rule.metric == "score":
        return _score_reading(rule, evidence.challenger, limits.data)
    if rule.metric == "score_worse":
        return _score_worse_reading(evidence.challenger, evidence.champion)
    if evidence.load_report is None:
        return Reading.missing("the release ended before it was measured under load")
    return _load_reading(rule, evidence.load_report, limits)


def _badness(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _score_reading(rule: Rule, mine: Scored, data: Data) -> Reading:
    if mine.score is None:
        return Reading.missing(
            f"there is nothing to measure it on: log validation data with labels at {data.validation}"
        )
    if not rule.slice:
        value, samples, of = mine.score, mine.samples, f"{mine.metric}"
    else:
        part = next((one for one in mine.slices if one.name == rule.slice), None)
        if part is None:
            known = ", ".join(one.name for one in mine.slices) or "none: name a column in `data.slices`"
            return Reading.missing(f"the validation data have no slice {rule.slice!r}; there are {known}")
        value, samples, of = part.score, part.samples, f"score of {part.name}"
    if samples < data.min_samples:
        return Reading.missing(f"{samples} validation samples are too few, at least {data.min_samples} decide it")
    return Reading.exact(value, f"{of} {value:.4f} ({samples} samples)")


def _score_worse_reading(mine: Scored, theirs: Scored | None) -> Reading:
    worse = score_worse(mine, theirs)
    if worse is None:
        return Reading.missing("there is no champion scored on the same samples")
    return Reading.exact(worse, f"{mine.metric} is {worse:.4f} worse than the champion's")


def _load_reading(rule: Rule, report: LoadReport, limits: Limits) -> Reading:
    if rule.metric == "failures":
        return Reading.exact(report.failures, f"{report.failures} requests failed")
    if rule.metric == "memory_mb":
        return _memory_reading(report)
    if rule.metric == "max_rate_per_s":
        return _rate_reading(report.max_rate_per_s)
    if not rule.metric.endswith("_worse_percent"):
        return _point_reading(rule, report, limits.slo)
    if report.comparison is None:
        return Reading.missing("there was no champion to measure beside it")
    side = "p99" if rule.metric.startswith("p99") else "throughput"
    return _worse_reading(report.comparison, side, rule.limit, limits.slo.regression)


def _memory_reading(report: LoadReport) -> Reading:
    if report.memory_mb is None:
        return Reading.missing("its memory was not measured: nobody measures it where it was staged")
    return Reading.exact(report.memory_mb, f"{report.memory_mb:.0f} MiB under load")


def _rate_reading(rate: float | None) -> Reading:
    if rate is None:
        return Reading.missing("the highest rate was not searched for: set `slo.p99_ms` and `load.open_loop_s`")
    return Reading.exact(rate, f"{rate:.0f} requests/s within the p99 limit")


def _point_reading(rule: Rule, report: LoadReport, slo: Slo) -> Reading:
    field = "p99_ms" if rule.metric == "open_p99_ms" else rule.metric
    kind, _, wanted = rule.slice.partition("=")
    if rule.metric == "open_p99_ms" or kind == "rate":
        found = [p for p in report.open_points if kind != "rate" or p.rate_per_s == float(wanted)]
        point = max(found, key=lambda p: p.rate_per_s, default=None)
    elif wanted:
        point = next((p for p in report.points if p.concurrency == float(wanted)), None)
    else:
        point = operating_point(report, slo)
    if point is None:
        return Reading.missing(f"it was not measured at {rule.slice or 'any rate'}: see the spec's section `load`")
    value = float(getattr(point, field))
    return _unsettled(value, point, f"{field} {value:.2f} {where(point)}")


def where(point: LoadPoint) -> str:
    """At which load a point was taken."""
    return f"at {point.rate_per_s:.0f} requests/s" if point.rate_per_s else f"at concurrency {point.concurrency}"


def _unsettled(value: float, point: LoadPoint, said: str) -> Reading:
    """A measurement whose windows did not agree is anywhere within twice their spread."""
    if point.stable:
        return Reading.exact(value, said)
    wide = value * 2 * point.spread_percent / 100
    return Reading(
        value=value, low=value - wide, high=value + wide, said=said,
        more=f"windows differed by {point.spread_percent:.0f} %, which does not decide it; raise `load.attempts` or "
        "`load.window_ms`, or use a quieter machine",
    )  # fmt: skip


def parity_check(cases: tuple[ParityCase, ...], quality: Quality) -> Check:
    """The exported model against the original; see `spec.Parity` for the rule."""
    limit = quality.parity
    failing = [case for case in cases if not (case.max_abs <= limit.max_abs or case.max_rel <= limit.max_rel)]
    worst = max(failing or cases, key=lambda case: case.max_abs)
    reason = _parity_reason(worst, limit) if failing else ""
    return _check("parity", worst.max_abs, limit.max_abs, "absolute difference", _fail_if(bool(failing)), reason)


def _parity_reason(case: ParityCase, limit: Parity) -> str:
    where = f"on {case.inputs} (batch {case.batch})"
    if case.problem:
        return f"{where} {case.problem}"
    return (
        f"{where} the exported model is {case.max_abs:.3g} off ({case.max_rel:.3g} of the largest value); "
        f"allowed are {limit.max_abs:g} or {limit.max_rel:g}"
    )


def score_check(score: float | None, samples: int, metric: Metric | None, quality: Quality, data: Data) -> Check | None:
    """The task metric against the least allowed; None where the spec sets none."""
    limit = quality.min_score
    if limit is None:
        return None
    if score is None or metric is None:
        return _check(
            data.metric, None, limit, data.metric, Outcome.INCONCLUSIVE,
            f"there is nothing to measure it on: log validation data with labels at {data.validation}",
        )  # fmt: skip
    if math.isnan(score):
        return _check(
            metric, score, limit, metric, Outcome.INCONCLUSIVE,
            f"{metric} is not a number: outputs or labels of the validation set are not finite",
        )  # fmt: skip
    if samples < data.min_samples:
        return _check(
            metric, score, limit, metric, Outcome.INCONCLUSIVE,
            f"{samples} validation samples are too few, at least {data.min_samples} decide it",
        )  # fmt: skip
    failed = (limit - score) * metrics.better(metric) > 0
    side = "over" if metric == "mae" else "under"
    reason = f"{metric} {score:.4f} is {side} the budget of {limit:g} ({samples} samples)"
    return _check(metric, score, limit, metric, _fail_if(failed), reason if failed else "")


def operating_point(report: LoadReport, slo: Slo) -> LoadPoint:
    """Where a service would be run: the highest throughput within the p99 limit, else the lowest p99."""
    within = [point for point in report.points if slo.p99_ms is None or point.p99_ms <= slo.p99_ms]
    if within:
        return max(within, key=lambda point: point.throughput_per_s)
    return min(report.points, key=lambda point: point.p99_ms)


def load_checks(report: LoadReport, slo: Slo) -> Iterator[Check]:
    """Latency, throughput, failures and memory against their absolute limits."""
    point = operating_point(report, slo)
    p99 = _unsettled(point.p99_ms, point, f"p99 {point.p99_ms:.2f} ms {where(point)}")
    yield _decided("p99", p99, slo.p99_ms, "ms")
    rate = _unsettled(point.throughput_per_s, point, f"{point.throughput_per_s:.0f} inferences/s {where(point)}")
    yield _decided("throughput", rate, slo.throughput_per_s, "inferences/s", upper=False)
    failed = Reading.exact(report.failures, f"{report.failures} requests failed")
    yield _decided("failures", failed, slo.failures, "requests")
    yield _decided("memory", _memory_reading(report), slo.memory_mb, "MiB")


def champion_checks(
    comparison: Comparison | None, champion: Scored | None, challenger: Scored, slo: Slo, uncompared: str = ""
) -> Iterator[Check]:
    """The challenger against the champion: its score on the same samples, and its speed as measured in alternation."""
    if champion is None:
        return
    yield from _score_regression(champion, challenger, slo)
    if comparison is None:
        reason = uncompared or "the champion was not measured beside it"
        yield _check("champion", None, None, "", Outcome.INCONCLUSIVE, reason)
        return
    yield from speed_checks(comparison, slo.regression)


def speed_checks(comparison: Comparison, target: ComparisonTarget) -> Iterator[Check]:
    """p99 and throughput against the champion's: a pass needs the whole interval within the limit."""
    for side, limit in (("p99", target.p99_percent), ("throughput", target.throughput_percent)):
        reading = _worse_reading(comparison, side, limit, target)
        yield _decided(f"{side} against the champion", reading, limit, "% worse")


def interval_of(comparison: Comparison, side: str, confidence_percent: float) -> Interval:
    """The interval of challenger over champion for `p99` or `throughput`."""
    ratios = comparison.p99_ratios if side == "p99" else comparison.throughput_ratios
    return ratio_interval(ratios, confidence=confidence_percent / 100, looks=comparison.looks)


def decided(comparison: Comparison, target: ComparisonTarget) -> bool:
    """Whether no more rounds are needed: every check of speed is a pass or a failure."""
    return all(check.verdict is not Outcome.INCONCLUSIVE for check in speed_checks(comparison, target))


def _bound(side: str, limit_percent: float) -> float:
    """The limit as a ratio: `limit_percent` more p99, or that much less throughput, than the champion has."""
    return 1 + limit_percent / 100 if side == "p99" else 1 - limit_percent / 100


def _worse_reading(comparison: Comparison, side: str, limit: float, target: ComparisonTarget) -> Reading:
    found = interval_of(comparison, side, target.confidence_percent)
    sign = 1 if side == "p99" else -1
    low, high = sorted((sign * (found.low - 1) * 100, sign * (found.high - 1) * 100))
    value = sign * (found.estimate - 1) * 100
    if math.isnan(value):
        return Reading.missing("its rounds gave no ratio")
    return Reading(
        value=value,
        low=low,
        high=high,
        said=f"{value:.1f} % worse ({low:.1f} to {high:.1f} %)",
        more=_what_would_decide(comparison, side, limit, target),
    )


def _what_would_decide(comparison: Comparison, side: str, limit: float, target: ComparisonTarget) -> str:
    ratios = comparison.p99_ratios if side == "p99" else comparison.throughput_ratios
    given = {"confidence": target.confidence_percent / 100, "looks": comparison.looks}
    bound = _bound(side, limit)
    needed = rounds_to_decide(ratios, bound, **given) if bound > 0 else None  # type: ignore[arg-type]
    seen = smallest_difference(ratios, **given)  # type: ignore[arg-type]
    said = f"{len(ratios)} rounds show differences of {seen:.0f} % and more" if math.isfinite(seen) else (
        f"{len(ratios)} rounds show nothing"
    )  # fmt: skip
    if needed is None:
        return f"{said}; it is too close to the limit for any number of rounds: a quieter machine, or another limit"
    more = max(1, needed - len(ratios))
    return f"{said}; about {more} more would decide it (`load.comparison_rounds`, `load.comparison_budget_s`)"


def score_worse(mine: Scored, theirs: Scored | None) -> float | None:
    """How much worse the challenger's score is; None where the two can't be compared: other samples, another unit."""
    if theirs is None or theirs.score is None or mine.score is None or mine.metric is None:
        return None
    if theirs.metric != mine.metric or theirs.validation != mine.validation:
        return None
    return (theirs.score - mine.score) * metrics.better(mine.metric)


def _score_regression(champion: Scored, challenger: Scored, slo: Slo) -> Iterator[Check]:
    worse = score_worse(challenger, champion)
    if worse is None:
        return
    metric, limit = challenger.metric, slo.regression.score
    reason = (
        f"{metric} {challenger.score:.4f} is {worse:.4f} worse than version {champion.version}'s {champion.score:.4f}"
    )
    verdict = Outcome.INCONCLUSIVE if math.isnan(worse) else _fail_if(worse > limit)
    reason = "" if verdict is Outcome.PASS else reason
    yield _check(f"{metric} against the champion", worse, limit, f"{metric} worse", verdict, reason)


def _decided(
    name: str, reading: Reading, limit: float | None, unit: str, *, upper: bool = True, severity: Severity = "block"
) -> Check:
    """A pass lies within the limit with all its bounds, a failure outside with all of them."""

    def given(outcome: Outcome, reason: str) -> Check:
        return _check(name, reading.value, limit, unit, outcome, reason, severity)

    if limit is None:
        return given(Outcome.PASS, "")
    if reading.value is None or math.isnan(reading.value):
        return given(Outcome.INCONCLUSIVE, reading.said if reading.value is None else f"{name} could not be measured")
    within = (reading.high <= limit) if upper else (reading.low >= limit)
    outside = (reading.low > limit) if upper else (reading.high < limit)
    if within:
        return given(Outcome.PASS, "")
    said = f"{reading.said}, the limit is {limit:g}"
    return given(Outcome.FAIL, said) if outside else given(Outcome.INCONCLUSIVE, f"{said}: {reading.more}")


def _fail_if(failed: bool) -> Outcome:
    return Outcome.FAIL if failed else Outcome.PASS


def _check(
    name: str, measured: float | None, limit: float | None, unit: str, verdict: Outcome, reason: str,
    severity: Severity = "block",
) -> Check:  # fmt: skip
    finite = measured if measured is not None and math.isfinite(measured) else None  # JSON knows no infinity
    return Check(name=name, measured=finite, limit=limit, unit=unit, verdict=verdict, reason=reason, severity=severity)
