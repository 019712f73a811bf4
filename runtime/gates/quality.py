"""The gates on a model's own quality, known before it is measured: parity with the original, and its task metric.

The metric is judged against its limit, and against the champion's on the same samples.
"""

import math

from shiplift.runtime.gates.checks import check, fail_if
from shiplift.runtime.records.model import ParityCase
from shiplift.runtime.records.precision import SCALES, Metric
from shiplift.runtime.records.serving import Package
from shiplift.runtime.records.verdict import Check, Outcome, Scored
from shiplift.runtime.spec.model import Data, Parity, Quality

_DIGITS = 9  # of a difference of scores: 0.96 - 0.95 is a little more than 0.01


def parity_check(cases: tuple[ParityCase, ...], quality: Quality) -> Check:
    """The exported model against the original; see `spec.model.Parity` for the rule."""
    limit = quality.parity
    failing = [case for case in cases if not (case.max_abs <= limit.max_abs or case.max_rel <= limit.max_rel)]
    worst = max(failing or cases, key=lambda case: case.max_abs)
    reason = _parity_reason(worst, limit) if failing else ""
    return check("parity", worst.max_abs, limit.max_abs, "absolute difference", fail_if(bool(failing)), reason)


def _parity_reason(case: ParityCase, limit: Parity) -> str:
    where = f"on {case.inputs} (batch {case.batch})"
    if case.problem:
        return f"{where} {case.problem}"
    return (
        f"{where} the exported model is off by {case.max_abs:.3g}, {case.max_rel:.3g} of the largest value; "
        f"the limit is {limit.max_abs:g}, or {limit.max_rel:g} of the largest value"
    )


def score_check(score: float | None, samples: int, metric: Metric | None, quality: Quality, data: Data) -> Check | None:
    """The task metric against its limit; None if the spec sets none."""
    limit = quality.min_score
    if limit is None:
        return None
    if score is None or metric is None:
        return check(
            data.metric, None, limit, data.metric, Outcome.INCONCLUSIVE,
            f"there are no data to measure it on: log validation data with labels at {data.validation}",
        )  # fmt: skip
    if math.isnan(score):
        return check(
            metric, score, limit, metric, Outcome.INCONCLUSIVE,
            f"{metric} is not a number: outputs or labels of the validation set are not finite",
        )  # fmt: skip
    if samples < data.min_samples:
        return check(
            metric, score, limit, metric, Outcome.INCONCLUSIVE,
            f"{samples} validation samples are too few, at least {data.min_samples} are needed",
        )  # fmt: skip
    better = SCALES[metric].better
    failed = (limit - score) * better > 0
    side = "under" if better > 0 else "over"
    reason = f"{metric} {score:.4f} is {side} the budget of {limit:g} ({samples} samples)"
    return check(metric, score, limit, metric, fail_if(failed), reason if failed else "")


def scored(package: Package) -> Scored:
    """A package's scores, without its artifacts."""
    return Scored(**package.model_dump(include=set(Scored.model_fields)))


def score_worse(challenger: Scored, champion: Scored | None) -> float | None:
    """How much worse the challenger's score is; None if the two have different metrics or validation sets."""
    if champion is None or champion.score is None or challenger.score is None or challenger.metric is None:
        return None
    if champion.metric != challenger.metric or champion.validation != challenger.validation:
        return None
    return (champion.score - challenger.score) * SCALES[challenger.metric].better


def regression_check(champion: Scored | None, challenger: Scored, limit: float) -> Check | None:
    """The challenger's score against the champion's; None if the two can't be compared."""
    worse = score_worse(challenger, champion)
    if worse is None or champion is None:
        return None
    metric = challenger.metric
    reason = (
        f"{metric} {challenger.score:.4f} is {worse:.4f} worse than version {champion.version}'s {champion.score:.4f}"
    )
    verdict = Outcome.INCONCLUSIVE if math.isnan(worse) else fail_if(round(worse, _DIGITS) > limit)
    reason = "" if verdict is Outcome.PASS else reason
    return check(f"{metric} against the champion", worse, limit, f"{metric} worse", verdict, reason)
