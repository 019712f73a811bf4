"""The gates' arithmetic: pure functions from measurements and limits to checks that explain themselves.

`gate` uses them, and so does a replay of an old release's evidence under another policy. Checks that are needed earlier
have their own modules: `package` judges by `quality`, so that a hopeless model stops before it is measured, and the
load test continues until `comparison` is decided. The limits of the sections `quality` and `slo` are checked like
rules; they have names of their own because every release has them.
"""

import math
from collections.abc import Iterator, Mapping

from shiplift.runtime.gates.checks import CheckReading, check, check_limit
from shiplift.runtime.gates.comparison import speed_checks, worse_reading
from shiplift.runtime.gates.quality import (
    answers_check,
    jpeg_checks,
    no_data,
    parity_check,
    regression_check,
    score_check,
    score_reading,
    score_worse,
    scored,
    too_few,
)
from shiplift.runtime.gates.remedies import CheckKind
from shiplift.runtime.gates.shadow import shadow_checks
from shiplift.runtime.precision.scoring.estimates import score_of, slice_of
from shiplift.runtime.records.deployment import Deployment, which_targets_serve
from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.records.measurement import Comparison, LoadPoint, LoadReport, Streaming
from shiplift.runtime.records.promotion import Champion
from shiplift.runtime.records.shadowing import Shadowed
from shiplift.runtime.records.verdict import Check, GateEvidence, Outcome, Scored, Verdict
from shiplift.runtime.spec.groups import Requirements
from shiplift.runtime.spec.measurement import Slo
from shiplift.runtime.spec.model import Quality
from shiplift.runtime.spec.rules import Policy, Rule

KINDS: Mapping[str, CheckKind] = {  # of a rule's check, by its metric
    **dict.fromkeys(("p50_ms", "p90_ms", "p95_ms", "p99_ms", "queue_ms", "compute_ms"), CheckKind.LATENCY),
    **dict.fromkeys(("ttft_p99_ms", "inter_token_p99_ms", "open_p99_ms"), CheckKind.LATENCY),
    "throughput_per_s": CheckKind.THROUGHPUT,
    "tokens_per_s": CheckKind.TOKENS,
    "max_rate_per_s": CheckKind.RATE,
    "failures": CheckKind.FAILURES,
    "memory_mb": CheckKind.MEMORY,
    "score": CheckKind.SCORE,
    "score_worse": CheckKind.SCORE_WORSE,
    "parity_max_abs": CheckKind.PARITY,
    "parity_max_rel": CheckKind.PARITY,
    "p99_worse_percent": CheckKind.LATENCY_WORSE,
    "throughput_worse_percent": CheckKind.THROUGHPUT_WORSE,
}


def judge(evidence: GateEvidence, limits: Requirements) -> tuple[Check, ...]:
    """All checks of the evidence against the limits; a pure function."""
    challenger, champion, load = evidence.challenger, evidence.champion, evidence.load_report
    own = (
        parity_check(evidence.parity, limits.quality),
        answers_check(challenger),
        score_check(challenger, limits.quality, limits.data),
        *jpeg_checks(challenger, limits.quality),
    )
    checks = [each for each in own if each]
    if load is not None:
        checks += load_checks(load, limits.slo)
        checks += champion_checks(load.comparison, champion, challenger, limits, load.uncompared)
    checks += rule_checks(evidence, limits)
    checks += _checks_beside(evidence, limits)
    checks += targets_check(evidence)
    checks += quarantine_check(evidence)
    checks += shadow_checks(evidence.shadow, limits.shadow, limits.slo.p99_ms)
    return tuple(checks)


def verdict(evidence: GateEvidence, limits: Requirements) -> Verdict:
    """The verdict of all checks, with its evidence, and the targets that it leaves out if the spec allows that."""
    left_out = (
        tuple(scored.target for scored in evidence.others if any(map(_objects, _checks_of(scored, evidence, limits))))
        if limits.rollout.failed_target == "leave_out"
        else ()
    )
    return Verdict.of(judge(evidence, limits)).model_copy(update={"evidence": evidence, "left_out": left_out})


def evidence_of(
    exported: Exported,
    deployment: Deployment,
    load_report: LoadReport,
    champion: Champion,
    not_served: tuple[str, ...] = (),
    shadow: Shadowed | None = None,
) -> GateEvidence:
    """The evidence for a verdict, without artifacts. `not_served` names the targets that the release does not serve."""
    return GateEvidence(
        parity=exported.parity,
        challenger=scored(deployment.package),
        others=tuple(scored(other.package) for other in deployment.others),
        left_out=deployment.left_out,
        champion=scored(champion.package) if champion.package else None,
        load_report=_without_bytes(load_report),
        not_served=not_served,
        quarantined=champion.quarantined,
        shadow=shadow if shadow and (shadow.champion or shadow.why_not) else None,
    )


def _without_bytes(report: LoadReport) -> LoadReport:
    return report.model_copy(update={"raw": None, "table": None, "others": tuple(map(_without_bytes, report.others))})


def targets_check(evidence: GateEvidence) -> Iterator[Check]:
    """Warns if some of the spec's targets are not served."""
    serving = [evidence.challenger.target, *(scored.target for scored in evidence.others)]
    if evidence.not_served:
        reason = which_targets_serve(serving, evidence.not_served, evidence.left_out)
        served, limit = float(len(serving)), float(len(serving) + len(evidence.not_served))
        yield check(
            CheckKind.TARGETS, "targets", served, limit, "targets served", Outcome.FAIL, reason, severity="warn"
        )


def quarantine_check(evidence: GateEvidence) -> Iterator[Check]:
    """Warns if production kept this version apart once, because it crashed again and again."""
    if why := evidence.quarantined:
        reason = f"{why}. Find out why before it serves again"
        yield check(CheckKind.QUARANTINE, "quarantine", None, None, "", Outcome.FAIL, reason, severity="warn")


def _checks_beside(evidence: GateEvidence, limits: Requirements) -> Iterator[Check]:
    """The checks of the targets after the first; warnings if the spec says to leave out a target that fails."""
    warn = {"severity": "warn"} if limits.rollout.failed_target == "leave_out" else {}
    for beside in evidence.others:
        for each in _checks_of(beside, evidence, limits):
            yield each.model_copy(update={"name": f"{each.name} on {beside.target}", **warn})


def _checks_of(challenger: Scored, evidence: GateEvidence, limits: Requirements) -> Iterator[Check]:
    """The checks of one of these targets, against limits alone: only the first target is compared with the champion."""
    reports = {report.target: report for report in (evidence.load_report.others if evidence.load_report else ())}
    report = reports.get(challenger.target)
    own = GateEvidence(parity=evidence.parity, challenger=challenger, load_report=report)
    yield from filter(None, (answers_check(challenger), score_check(challenger, limits.quality, limits.data)))
    yield from load_checks(report, limits.slo) if report else []
    absolute = [rule for rule in limits.policy.rules if rule.target or "_worse" not in rule.metric]
    yield from rule_checks(own, limits.model_copy(update={"policy": Policy(rules=tuple(absolute))}))


def _objects(check: Check) -> bool:
    return check.verdict is not Outcome.PASS and check.severity == "block"


def rule_checks(evidence: GateEvidence, limits: Requirements) -> Iterator[Check]:
    """The checks of the policy's rules for this target."""
    for rule in limits.policy.rules:
        if rule.target in ("", evidence.challenger.target):
            yield check_limit(
                KINDS[rule.metric],
                rule.name,
                read(rule, evidence, limits),
                rule.limit,
                rule.unit,
                upper=rule.comparison == "<=",
                severity=rule.severity,
            )


def read(rule: Rule, evidence: GateEvidence, limits: Requirements) -> CheckReading:
    """Reads a rule's metric from the evidence."""
    if rule.metric.startswith("parity_"):
        if not evidence.parity:
            return CheckReading.missing("nothing was exported, as for a pipeline of models")
        field = rule.metric.removeprefix("parity_")
        worst = max((getattr(case, field) for case in evidence.parity), key=_badness, default=math.nan)
        return CheckReading.exact(worst, f"{field} {worst:.3g}")
    if rule.metric == "score":
        return _score_reading(rule, evidence.challenger, limits)
    if rule.metric == "score_worse":
        return _score_worse_reading(rule, evidence, limits.quality)
    if evidence.load_report is None:
        return CheckReading.missing("the release ended before it was measured under load")
    return _load_reading(rule, evidence.load_report, limits)


def _badness(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _score_reading(rule: Rule, challenger: Scored, limits: Requirements) -> CheckReading:
    data, quality, metric = limits.data, limits.quality, challenger.metric
    if challenger.score is None or metric is None:
        return CheckReading.missing(no_data(data))
    confidence = quality.confidence_percent / 100
    if not rule.slice:
        estimate, subject = score_of(challenger, metric, confidence), f"{metric}"
    else:
        part = next((part for part in challenger.slices if part.name == rule.slice), None)
        if part is None:
            known = ", ".join(part.name for part in challenger.slices) or "none: name a column in `data.slices`"
            return CheckReading.missing(f"the validation data have no slice {rule.slice!r}; there are {known}")
        estimate, subject = slice_of(part, metric, confidence), f"score of {part.name}"
    if estimate.samples < data.min_samples:
        return CheckReading.missing(too_few(estimate.samples, data))
    return score_reading(estimate, rule.limit, f"{subject} {estimate.text} ({estimate.samples} samples)", quality)


def _score_worse_reading(rule: Rule, evidence: GateEvidence, quality: Quality) -> CheckReading:
    challenger = evidence.challenger
    worse = score_worse(challenger, evidence.champion, quality)
    if worse is None:
        return CheckReading.missing("there is no champion scored on the same samples")
    text = f"{challenger.metric} is {worse.text} worse than the champion's"
    return score_reading(worse, rule.limit, text, quality)


def _load_reading(rule: Rule, report: LoadReport, limits: Requirements) -> CheckReading:
    if rule.metric == "failures":
        return CheckReading.exact(report.failures, f"{report.failures} requests failed")
    if rule.metric == "memory_mb":
        return _memory_reading(report)
    if rule.metric == "max_rate_per_s":
        return _rate_reading(report.max_rate_per_s)
    if not rule.metric.endswith("_worse_percent"):
        return _point_reading(rule, report, limits.slo)
    if report.comparison is None:
        return CheckReading.missing("there was no champion to compare it with")
    side = "p99" if rule.metric.startswith("p99") else "throughput"
    return worse_reading(report.comparison, side, rule.limit, limits.slo.regression)


def _memory_reading(report: LoadReport) -> CheckReading:
    if report.memory_mb is None:
        return CheckReading.missing("its memory was not measured: it can't be measured where it was staged")
    return CheckReading.exact(report.memory_mb, f"{report.memory_mb:.0f} MiB under load")


def _rate_reading(rate: float | None) -> CheckReading:
    if rate is None:
        return CheckReading.missing("the highest rate was not searched for: set `slo.p99_ms` and `load.open_loop_s`")
    return CheckReading.exact(rate, f"{rate:.0f} requests/s within the p99 limit")


def _point_reading(rule: Rule, report: LoadReport, slo: Slo) -> CheckReading:
    field = "p99_ms" if rule.metric == "open_p99_ms" else rule.metric
    kind, _, load = rule.slice.partition("=")
    if rule.metric == "open_p99_ms" or kind == "rate":
        points = [p for p in report.open_points if kind != "rate" or p.rate_per_s == float(load)]
        point = max(points, key=lambda p: p.rate_per_s, default=None)
    elif load:
        point = next((p for p in report.points if p.concurrency == float(load)), None)
    else:
        point = operating_point(report, slo)
    if point is None:
        return CheckReading.missing(f"it was not measured at {rule.slice or 'any rate'}: see the spec's section `load`")
    if field in Streaming.model_fields:
        return _streaming_reading(field, point)
    value = float(getattr(point, field))
    return _load_point_reading(value, point, f"{field} {value:.2f} {where(point)}")


def _streaming_reading(name: str, point: LoadPoint) -> CheckReading:
    """What users of streamed answers experienced at a load."""
    if point.streaming is None:
        return CheckReading.missing("the model does not stream, so it was not measured")
    value = float(getattr(point.streaming, name))
    return _load_point_reading(value, point, f"{name} {value:.2f} {where(point)}")


def where(point: LoadPoint) -> str:
    """The load of a point, in words."""
    return f"at {point.rate_per_s:.0f} requests/s" if point.rate_per_s else f"at concurrency {point.concurrency}"


def _load_point_reading(value: float, point: LoadPoint, text: str) -> CheckReading:
    """A measurement at a load. If its windows disagree, the true value may be anywhere within twice their spread."""
    if point.stable:
        return CheckReading.exact(value, text)
    error = value * 2 * point.spread_percent / 100
    return CheckReading(
        value=value,
        low=value - error,
        high=value + error,
        text=text,
        remedy=f"windows differed by {point.spread_percent:.0f} %, too much to decide; raise `load.attempts` or "
        "`load.window_ms`, or use a quieter machine",
    )


def operating_point(report: LoadReport, slo: Slo) -> LoadPoint:
    """The load to operate at: the highest throughput within the p99 limit, else the lowest p99."""
    within = [point for point in report.points if slo.p99_ms is None or point.p99_ms <= slo.p99_ms]
    if within:
        return max(within, key=lambda point: point.throughput_per_s)
    return min(report.points, key=lambda point: point.p99_ms)


def load_checks(report: LoadReport, slo: Slo) -> Iterator[Check]:
    """Latency, throughput, failures and memory against their absolute limits."""
    point = operating_point(report, slo)
    p99 = _load_point_reading(point.p99_ms, point, f"p99 {point.p99_ms:.2f} ms {where(point)}")
    yield check_limit(CheckKind.LATENCY, "p99", p99, slo.p99_ms, "ms")
    rate = _load_point_reading(
        point.throughput_per_s, point, f"{point.throughput_per_s:.0f} inferences/s {where(point)}"
    )
    yield check_limit(CheckKind.THROUGHPUT, "throughput", rate, slo.throughput_per_s, "inferences/s", upper=False)
    for kind, name, metric, limit, unit, upper in (
        (CheckKind.LATENCY, "time to first token", "ttft_p99_ms", slo.ttft_p99_ms, "ms", True),
        (CheckKind.TOKENS, "tokens", "tokens_per_s", slo.tokens_per_s, "tokens/s", False),
    ):
        if limit is not None or point.streaming is not None:
            yield check_limit(kind, name, _streaming_reading(metric, point), limit, unit, upper=upper)
    failures = CheckReading.exact(report.failures, f"{report.failures} requests failed")
    yield check_limit(CheckKind.FAILURES, "failures", failures, slo.failures, "requests")
    yield check_limit(CheckKind.MEMORY, "memory", _memory_reading(report), slo.memory_mb, "MiB")


def champion_checks(
    comparison: Comparison | None,
    champion: Scored | None,
    challenger: Scored,
    limits: Requirements,
    uncompared: str = "",
) -> Iterator[Check]:
    """The challenger against the champion: scores on the same samples, and speeds measured in alternation."""
    if champion is None:
        return
    if worse := regression_check(champion, challenger, limits.slo.regression.score, limits.quality):
        yield worse
    if comparison is None:
        reason = uncompared or "the champion was not measured with it"
        yield check(CheckKind.CHAMPION, "champion", None, None, "", Outcome.INCONCLUSIVE, reason)
        return
    yield from speed_checks(comparison, limits.slo.regression)
