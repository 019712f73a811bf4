"""The gates on a model's own quality, known before the load test: parity with the original, and the task metric.

The metric is judged against its limit and against the champion's score on the same samples.
"""

import math
from collections.abc import Iterator

from shiplift.runtime.gates.checks import CheckReading, check, fail_if, judged
from shiplift.runtime.gates.remedies import CheckKind
from shiplift.runtime.precision.scoring.estimates import Estimate, score_of, worse_of
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.model import ParityCase
from shiplift.runtime.records.precision import JpegScore, TaskMetricName, scale_of
from shiplift.runtime.records.verdict import Check, Outcome, Scored
from shiplift.runtime.spec.model import Data, OwnMetric, Parity, Quality

_WORSE = 0.01  # than the champion, of the metric's range or of what a constant prediction scores


def parity_check(cases: tuple[ParityCase, ...], quality: Quality) -> Check | None:
    """Checks the exported model against the original by `spec.model.Parity`. None if nothing was exported."""
    if not cases:
        return None
    limit = quality.parity
    far = [case for case in cases if not (case.max_abs <= limit.max_abs or case.max_rel <= limit.max_rel)]
    failing = [case for case in cases if case.problem] or far
    worst = max(failing or cases, key=lambda case: case.max_abs)
    reason = _parity_reason(worst, limit) if failing else ""
    return check(
        CheckKind.PARITY, "parity", worst.max_abs, limit.max_abs, "absolute difference", fail_if(bool(failing)), reason
    )


def _parity_reason(case: ParityCase, limit: Parity) -> str:
    where = f"on {case.inputs} (batch {case.batch})"
    if case.problem:
        return f"{where} {case.problem}"
    return (
        f"{where} the exported model is off by {case.max_abs:.3g}, {case.max_rel:.3g} of the largest value; "
        f"the limit is {limit.max_abs:g}, or {limit.max_rel:g} of the largest value"
    )


def answers_check(scored: Scored) -> Check | None:
    """Tells what the packaged server was asked. A package that differs gets no further than tuning, so this passes."""
    if scored.proof is None:
        return None
    asked = sum(each.rows for each in scored.proof.asked)
    return check(CheckKind.ANSWERS, "answers", asked, None, "rows through the server", Outcome.PASS, str(scored.proof))


def no_data(data: Data) -> str:
    """Why a score can't be judged without labelled data, and the lines that log some."""
    file = data.validation.rpartition("/")[2]
    folder = data.validation.rpartition("/")[0]
    logs = f"`mlflow.log_artifact({file!r}{f', {folder!r}' if folder else ''})` in the run that logs the model"
    if file.endswith(".npz"):
        logs = f"`np.savez({file!r}, INPUT=x, {data.label}=y)`, then {logs}"
    return f"there are no labelled data to measure it on, at {data.validation}. Log some: {logs}"


def too_few(samples: int, data: Data) -> str:
    """Why a score on so few samples is not judged, and what would change that."""
    return (
        f"{samples} validation samples are too few, at least {data.min_samples} are needed: log more at "
        f"{data.validation}, or accept a wider interval with `data: {{min_samples: {max(1, samples)}}}` in the spec"
    )


def score_check(challenger: Scored, quality: Quality, data: Data) -> Check | None:
    """Checks the task metric against its limit; None if the spec sets none."""
    limit, score, metric = quality.min_score, challenger.score, challenger.metric
    if limit is None:
        return None
    if score is None or metric is None:
        return _undecided(
            data.metric,
            None,
            limit,
            no_data(data),
        )
    if math.isnan(score):
        reason = f"{metric} is not a number: outputs or labels of the validation set are not finite"
        return _undecided(metric, score, limit, reason)
    if challenger.samples < data.min_samples:
        reason = too_few(challenger.samples, data)
        return _undecided(metric, score, limit, reason)
    estimate, better = score_of(challenger, metric, quality.confidence_percent / 100), scale_of(metric).better
    reading = score_reading(estimate, limit, f"{metric} {estimate.text}", quality)
    verdict = judged(reading, limit, upper=better < 0)
    beyond = f"is {'under' if better > 0 else 'over'} the budget of {limit:g} ({challenger.samples} samples)"
    reasons = {
        Outcome.PASS: "",
        Outcome.FAIL: f"{reading.text} {beyond}",
        Outcome.INCONCLUSIVE: f"{reading.text} against the budget of {limit:g}: {reading.remedy}",
    }
    return check(
        CheckKind.SCORE,
        str(metric),
        score,
        limit,
        str(metric),
        verdict,
        reasons[verdict],
        bounds=(reading.low, reading.high),
    )


def jpeg_checks(challenger: Scored, quality: Quality) -> tuple[Check, ...]:
    """What JPEG files of each quality cost in the task metric, compared with the original images."""
    if not challenger.jpegs or challenger.metric is None:
        return ()
    plain, *files = challenger.jpegs
    return tuple(_jpeg_check(plain, each, challenger.metric, quality) for each in files)


def _jpeg_check(plain: JpegScore, file: JpegScore, metric: TaskMetricName, quality: Quality) -> Check:
    limit, name = quality.max_jpeg_drop, f"{metric} as JPEG {file.quality}"
    if plain.score is None or file.score is None:
        why = "its answers can't be scored"
        return check(CheckKind.JPEG, name, None, limit, f"{metric} worse", Outcome.INCONCLUSIVE, why)
    worse = worse_of(plain, file, metric, quality.confidence_percent / 100)
    text = f"{metric} {file.score:.4f} is {worse.text} worse than {plain.score:.4f} on the images as they are"
    return _worse_check(CheckKind.JPEG, name, metric, worse, limit, text, quality)


def jpeg_notes(jpegs: tuple[JpegScore, ...]) -> Iterator[str]:
    """What JPEG files of each quality save on the wire."""
    if not jpegs:
        return
    plain, *files = jpegs
    for file in files:
        share = 100 * file.image_bytes / plain.image_bytes
        yield (
            f"as JPEG {file.quality} an image has {file.image_bytes / 1000:.1f} kB, {share:.0f} % of its "
            f"{plain.image_bytes / 1000:.1f} kB of pixels"
        )


def _undecided(metric: TaskMetricName | OwnMetric, score: float | None, limit: float, reason: str) -> Check:
    return check(CheckKind.SCORE, str(metric), score, limit, str(metric), Outcome.INCONCLUSIVE, reason)


def score_reading(estimate: Estimate, limit: float, text: str, quality: Quality) -> CheckReading:
    """A score, or a loss of score, in the form that the gates read."""
    return CheckReading(
        value=estimate.value,
        low=estimate.low,
        high=estimate.high,
        text=text,
        remedy=estimate.remedy(limit),
        judge_by=quality.judge_by,
    )


def scored(package: Package) -> Scored:
    """A package's scores, without its artifacts."""
    return Scored(**package.model_dump(include=set(Scored.model_fields)))


def score_worse(challenger: Scored, champion: Scored | None, quality: Quality) -> Estimate | None:
    """How much worse the challenger's score is than the champion's, paired over the samples of both.

    None if the two have different metrics or validation sets.
    """
    if champion is None or champion.score is None or challenger.score is None or challenger.metric is None:
        return None
    if champion.metric != challenger.metric or champion.validation != challenger.validation:
        return None
    return worse_of(champion, challenger, challenger.metric, quality.confidence_percent / 100)


def regression_check(
    champion: Scored | None, challenger: Scored, limit: float | None, quality: Quality
) -> Check | None:
    """Checks the challenger's score against the champion's; None if the two can't be compared.

    Without a limit it is a share of what a constant prediction scores: see `spec.measurement.Regression`.
    """
    worse = score_worse(challenger, champion, quality)
    if worse is None or champion is None:
        return None
    metric = challenger.metric
    text = (
        f"{metric} {challenger.score:.4f} is {worse.text} worse than version {champion.version}'s {champion.score:.4f}"
    )
    allowed = _WORSE * challenger.constant_score if limit is None else limit
    name = f"{metric} against the champion"
    return _worse_check(CheckKind.SCORE_WORSE, name, metric, worse, allowed, text, quality)


def _worse_check(
    kind: CheckKind,
    name: str,
    metric: TaskMetricName | None,
    worse: Estimate,
    limit: float,
    text: str,
    quality: Quality,
) -> Check:
    """Checks a loss of the metric against its limit."""
    reading = score_reading(worse, limit, text, quality)
    verdict = judged(reading, limit, upper=True)
    against = f"{text}, the limit is {limit:g}"
    reasons = {
        Outcome.PASS: "",
        Outcome.FAIL: against,
        Outcome.INCONCLUSIVE: text if math.isnan(worse.value) else f"{against}: {reading.remedy}",
    }
    return check(
        kind, name, worse.value, limit, f"{metric} worse", verdict, reasons[verdict], bounds=(reading.low, reading.high)
    )
