"""The gates' arithmetic: pure functions from measurements and limits to checks that explain themselves.

Two steps judge with them: `package` (quality, so that a hopeless model stops before it is measured) and `gate` (all).
A check is inconclusive where its number is missing, unstable, or closer to the limit than its own error.
"""

import math
from collections.abc import Iterator

from runtime import metrics
from runtime.records import (
    Champion,
    Check,
    Comparison,
    LoadPoint,
    LoadReport,
    Metric,
    Outcome,
    ParityCase,
)
from runtime.spec import Data, Parity, Quality, Slo

# Two-sided 95 % quantiles of Student's t by degrees of freedom, from 1; 1.96 beyond.
_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10)
_Z = 1.96


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
    at = f"at concurrency {point.concurrency}"
    yield _limited("p99", point.p99_ms, slo.p99_ms, "ms", point, f"p99 {point.p99_ms:.2f} ms {at}", upper=True)
    yield _limited(
        "throughput", point.throughput_per_s, slo.throughput_per_s, "inferences/s", point,
        f"{point.throughput_per_s:.0f} inferences/s {at}", upper=False,
    )  # fmt: skip
    yield _limited(
        "failures", report.failures, slo.failures, "requests", None, f"{report.failures} requests failed", upper=True
    )
    used = "its memory was not measured" if report.memory_mb is None else f"{report.memory_mb:.0f} MiB under load"
    yield _limited("memory", report.memory_mb, slo.memory_mb, "MiB", None, used, upper=True)


def champion_checks(
    comparison: Comparison | None,
    champion: Champion,
    score: float | None,
    metric: Metric | None,
    validation: str,
    slo: Slo,
) -> Iterator[Check]:
    """The challenger against the champion: its score on the same samples, and its speed as measured in alternation."""
    if champion.package is None:
        return
    yield from _score_regression(champion, score, metric, validation, slo)
    if comparison is None:
        yield _check("champion", None, None, "", Outcome.INCONCLUSIVE, "the champion was not measured beside it")
        return
    yield from speed_checks(comparison, slo)


def speed_checks(comparison: Comparison, slo: Slo) -> Iterator[Check]:
    """p99 and throughput against the champion's; ratios are challenger over champion."""
    slower, less = slo.regression.p99_percent, slo.regression.throughput_percent
    yield _ratio("p99 against the champion", (comparison.p99_ratio - 1) * 100, slower, comparison.p99_noise)
    yield _ratio(
        "throughput against the champion", (1 - comparison.throughput_ratio) * 100, less, comparison.throughput_noise
    )


def _ratio(name: str, worse: float, limit: float, noise: float) -> Check:
    """`worse` and `limit` in percent; `noise` is the half width of the ratio's interval, in percent too."""
    if worse <= limit:
        return _check(name, worse, limit, "% worse", Outcome.PASS, "")
    if not worse - noise > limit:
        return _check(
            name, worse, limit, "% worse", Outcome.INCONCLUSIVE,
            f"{worse:.1f} % worse with a noise of {noise:.1f} % does not decide a limit of {limit:g} %; "
            "more rounds (`load.comparison_rounds`) or a quieter machine would",
        )  # fmt: skip
    return _check(name, worse, limit, "% worse", Outcome.FAIL, f"{worse:.1f} % worse, allowed are {limit:g} %")


def _score_regression(
    champion: Champion, score: float | None, metric: Metric | None, validation: str, slo: Slo
) -> Iterator[Check]:
    before = champion.package
    if before is None or before.score is None or score is None or metric is None:
        return
    if before.metric != metric or before.validation != validation:
        return  # scores on other samples, or in another unit, can't be compared
    worse = (before.score - score) * metrics.better(metric)
    limit = slo.regression.score
    reason = f"{metric} {score:.4f} is {worse:.4f} worse than version {champion.version}'s {before.score:.4f}"
    verdict = Outcome.INCONCLUSIVE if math.isnan(worse) else _fail_if(worse > limit)
    reason = "" if verdict is Outcome.PASS else reason
    yield _check(f"{metric} against the champion", worse, limit, f"{metric} worse", verdict, reason)


def _limited(
    name: str, measured: float | None, limit: float | None, unit: str, point: LoadPoint | None, said: str,
    *, upper: bool,
) -> Check:  # fmt: skip
    if measured is None or math.isnan(measured):
        unknown = Outcome.PASS if limit is None else Outcome.INCONCLUSIVE
        return _check(name, measured, limit, unit, unknown, "" if limit is None else f"{name} could not be measured")
    over = limit is not None and (measured > limit if upper else measured < limit)
    if limit is not None and point is not None and not point.stable and _near(measured, limit, point.spread_percent):
        reason = (
            f"{said}, the limit is {limit:g}: windows differed by {point.spread_percent:.0f} %, which does not "
            "decide it; raise `load.attempts` or `load.window_ms`, or use a quieter machine"
        )
        return _check(name, measured, limit, unit, Outcome.INCONCLUSIVE, reason)
    reason = f"{said}, the limit is {limit:g}" if over else ""
    return _check(name, measured, limit, unit, _fail_if(over), reason)


def _near(measured: float, limit: float, spread_percent: float) -> bool:
    """Whether a limit is within twice the spread of a measurement that did not settle."""
    return abs(measured - limit) <= measured * 2 * spread_percent / 100


def _fail_if(failed: bool) -> Outcome:
    return Outcome.FAIL if failed else Outcome.PASS


def _check(name: str, measured: float | None, limit: float | None, unit: str, verdict: Outcome, reason: str) -> Check:
    finite = measured if measured is not None and math.isfinite(measured) else None  # JSON knows no infinity
    return Check(name=name, measured=finite, limit=limit, unit=unit, verdict=verdict, reason=reason)


def confidence_half_width(values: list[float]) -> float:
    """Half the width of a 95 % interval of the mean, by Student's t; infinite for fewer than 2 values."""
    if len(values) < 2:
        return float("inf")
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    quantile = _T[len(values) - 2] if len(values) - 2 < len(_T) else _Z
    return float(quantile * (variance / len(values)) ** 0.5)
