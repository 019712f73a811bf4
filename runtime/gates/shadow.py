"""The gates of a shadow: what a challenger did with the champion's real requests, against the spec's limits.

Shares are judged by exact binomial bounds (Clopper and Pearson, Biometrika, 1934). Rows of one request may all fail for
one reason, so a share of rows counts as if each request had been one row. The p99 is compared by the ratios of separate
parts of the time, like rounds of the load test.
"""

import math
from collections.abc import Iterator, Mapping

from shiplift.runtime.gates.checks import CheckReading, Severity, check, check_limit
from shiplift.runtime.gates.remedies import CheckKind
from shiplift.runtime.gates.statistics import ratio_interval
from shiplift.runtime.records.shadowing import OutputAgreement, Shadowed
from shiplift.runtime.records.verdict import Check, Outcome
from shiplift.runtime.spec.shadowing import Shadow

_SEVERITY: Mapping[str, Severity] = {"refuse": "block", "promote": "warn"}


def shadow_checks(shadowed: Shadowed | None, wanted: Shadow | None, p99_ms: float | None) -> Iterator[Check]:
    """All checks of a shadow; `p99_ms` is the SLO's limit, for a spec that gives the shadow none of its own."""
    if wanted is None:
        return
    if shadowed is None or not shadowed.champion:
        why = shadowed.why_not if shadowed and shadowed.why_not else "it was not tried on real requests"
        yield check(CheckKind.SHADOW, "shadow", None, None, "", Outcome.INCONCLUSIVE, why, severity="warn")
        return
    yield _requests(shadowed, wanted)
    if not shadowed.requests:
        return
    yield check_limit(
        CheckKind.SHADOW_ERRORS, "shadow errors", _errors(shadowed, wanted), wanted.errors_percent, "% of requests"
    )
    yield check_limit(CheckKind.SHADOW_LATENCY, "shadow p99", _p99(shadowed), wanted.p99_ms or p99_ms, "ms")
    worse, limit = _worse(shadowed, wanted), wanted.p99_worse_percent
    yield check_limit(CheckKind.SHADOW_LATENCY_WORSE, "shadow p99 against the champion", worse, limit, "% worse")
    yield from _agreements(shadowed, wanted)


def share_bounds(found: float, total: int, confidence: float) -> tuple[float, float]:
    """The exact two-sided bounds of a share of which `found` in `total` were seen."""
    if total <= 0:
        return 0.0, 1.0
    from scipy.special import betaincinv  # noqa: PLC0415 - takes 0.1 s, only where a shadow is judged

    tail = (1 - confidence) / 2
    low = float(betaincinv(found, total - found + 1, tail)) if found > 0 else 0.0
    high = float(betaincinv(found + 1, total - found, 1 - tail)) if found < total else 1.0
    return low, high


def _requests(shadowed: Shadowed, wanted: Shadow) -> Check:
    few = shadowed.requests < wanted.min_requests
    reason = f"{shadowed.requests} requests were seen, too few to rely on: at least {wanted.min_requests} are wanted"
    outcome, severity = Outcome.INCONCLUSIVE if few else Outcome.PASS, _SEVERITY[wanted.if_fewer]
    seen, limit = float(shadowed.requests), float(wanted.min_requests)
    return check(
        CheckKind.SHADOW_REQUESTS, "shadow requests", seen, limit, "requests", outcome, reason if few else "", severity
    )


def _errors(shadowed: Shadowed, wanted: Shadow) -> CheckReading:
    """How much larger the challenger's share of failed requests is than the champion's."""
    level = wanted.confidence_percent / 100
    low, high = share_bounds(shadowed.failed, shadowed.requests, level)
    own = shadowed.failed / shadowed.requests
    other = least = most = 0.0
    if shadowed.champion_requests:
        least, most = share_bounds(shadowed.champion_failed, shadowed.champion_requests, level)
        other = shadowed.champion_failed / shadowed.champion_requests
    value = max(0.0, own - other) * 100
    return CheckReading(
        value=value,
        low=max(0.0, low - most) * 100,
        high=max(0.0, high - least) * 100,
        text=f"{shadowed.failed} of {shadowed.requests} requests failed, {value:.3g} % more than the champion's",
        remedy="too few requests to tell: shadow for longer (`promotion.shadow.for`), or a larger `share`",
        judge_by="score",
    )


def _p99(shadowed: Shadowed) -> CheckReading:
    latency = shadowed.challenger_latency
    if latency is None:
        return CheckReading.missing("the challenger's latency could not be measured")
    return CheckReading(
        value=latency.p99_ms,
        low=latency.low_ms,
        high=latency.high_ms,
        text=f"p99 {latency.p99_ms:.2f} ms of {shadowed.requests} real requests",
        remedy="too few requests to tell: shadow for longer (`promotion.shadow.for`), or a larger `share`",
        judge_by="score",
    )


def _worse(shadowed: Shadowed, wanted: Shadow) -> CheckReading:
    interval = ratio_interval(shadowed.p99_ratios, confidence=wanted.confidence_percent / 100)
    if not shadowed.p99_ratios or math.isnan(interval.estimate):
        return CheckReading.missing("there were too few requests to compare the p99 of both in parts of the time")
    value, low, high = ((each - 1) * 100 for each in (interval.estimate, interval.low, interval.high))
    text = f"{value:.1f} % worse ({low:.1f} to {high:.1f} %)"
    remedy = f"{interval.rounds} parts of the time don't decide it: shadow for longer (`promotion.shadow.for`)"
    return CheckReading(value=value, low=low, high=high, text=text, remedy=remedy, judge_by="score")


def _agreements(shadowed: Shadowed, wanted: Shadow) -> Iterator[Check]:
    known = {each.output: each for each in shadowed.outputs if not each.slice}
    if shadowed.uncompared and not wanted.agreement_percent:
        yield check(
            CheckKind.SHADOW_AGREEMENT, "shadow agreement", None, None, "% of rows", Outcome.PASS, shadowed.uncompared
        )
        return
    for name in dict.fromkeys([*known, *wanted.named]) or [""]:
        reading = _agreement(known[name], wanted) if name in known else CheckReading.missing(_unknown(name, shadowed))
        label = f"shadow agreement of {name}" if name else "shadow agreement"
        limit = wanted.least_agreement(name) if name else None
        if name or wanted.agreement_percent is not None:
            limit = limit if name else 100.0
            yield check_limit(CheckKind.SHADOW_AGREEMENT, label, reading, limit, "% of rows", upper=False)
    for each in shadowed.outputs:
        limit = wanted.least_agreement(each.output)
        if each.slice and limit is not None and each.requests >= wanted.min_requests:
            label = f"shadow agreement of {each.output} in {each.slice}"
            yield check_limit(
                CheckKind.SHADOW_AGREEMENT, label, _agreement(each, wanted), limit, "% of rows", upper=False
            )


def _unknown(name: str, shadowed: Shadowed) -> str:
    return shadowed.uncompared or (f"no answer had an output {name!r}" if name else "no answers could be compared")


def _agreement(output: OutputAgreement, wanted: Shadow) -> CheckReading:
    share = output.percent / 100
    low, high = share_bounds(share * output.requests, output.requests, wanted.confidence_percent / 100)
    return CheckReading(
        value=output.percent,
        low=low * 100,
        high=high * 100,
        text=f"{output.same} of {output.rows} rows agree with the champion's ({output.percent:.3g} %)",
        remedy="too few requests to tell: shadow for longer (`promotion.shadow.for`), or a larger `share`",
        judge_by="score",
    )
