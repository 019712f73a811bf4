"""A score with its interval, and whether the samples decide on which side of a limit it lies.

The rule is the same for a version and for a precision. A score within its limit passes. A score beyond it fails if its
whole interval is beyond the limit; otherwise the samples decide nothing. So every refusal is proven, and every pass
rests on the best estimate, which is how benchmark numbers are usually read. Asking for the whole interval on every pass
would be a different promise: with 64 samples and a limit of one point, no two models that differ in a single answer
could replace each other. `judge_by: interval` gives that promise.
"""

from dataclasses import dataclass
from typing import Protocol

from shiplift.runtime.precision.scoring.bootstrap import interval, paired, samples_to_decide, student
from shiplift.runtime.records.precision import JudgeBy, Slice, TaskMetricName, scale_of

_DIGITS = 9  # of a difference of scores: in floats, 0.96 - 0.95 is a little more than 0.01


class ScoredCandidate(Protocol):
    """Something that was scored on a validation set."""

    @property
    def score(self) -> float | None:
        """The task metric; None if there was nothing to score."""

    @property
    def resamples(self) -> tuple[float, ...]:
        """Its scores on bootstrap resamples."""

    @property
    def samples(self) -> int:
        """How many samples the set has."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A score, or a loss of score, from `samples` samples. Without an error, all three numbers are equal."""

    value: float
    low: float
    high: float
    samples: int

    @property
    def text(self) -> str:
        """The value with its interval."""
        return f"{self.value:.4f}" + (f" ({self.low:.4f} to {self.high:.4f})" if self.low < self.high else "")

    def within(self, limit: float, judge_by: JudgeBy) -> bool:
        """Whether the estimate passes an upper limit; NaN never does."""
        return self.value <= limit and (judge_by == "score" or self.high <= limit)

    def beyond(self, limit: float) -> bool:
        """Whether the estimate certainly exceeds an upper limit; NaN does."""
        return not self.low <= limit

    def remedy(self, limit: float) -> str:
        """What would decide it, if the estimate is neither within nor beyond the limit."""
        bound = self.low if self.value > limit else self.high
        more = samples_to_decide(self.value, bound, limit, self.samples)
        if more is None:
            return f"{self.samples} samples can't decide it, and it is too close to the limit for any number of them"
        return f"{self.samples} samples can't decide it, about {more} more would"


def score_of(scored: ScoredCandidate, metric: TaskMetricName, confidence: float) -> Estimate:
    """A score with its interval, which stays in the metric's range; NaN without a score."""
    scale = scale_of(metric)
    room = scale.highest - scale.lowest if scale.counted else 0.0
    value = float("nan") if scored.score is None else scored.score
    low, high = interval(value, scored.resamples, scored.samples, confidence=confidence, room=room)
    return Estimate(value=value, low=max(low, scale.lowest), high=min(high, scale.highest), samples=scored.samples)


def slice_of(part: Slice, metric: TaskMetricName, confidence: float) -> Estimate:
    """A slice's score with Student's interval."""
    half = student(confidence, part.samples - 1) * part.error if part.samples > 1 else float("inf")
    scale = scale_of(metric)
    low, high = max(part.score - half, scale.lowest), min(part.score + half, scale.highest)
    return Estimate(value=part.score, low=low, high=high, samples=part.samples)


def worse_of(base: ScoredCandidate, other: ScoredCandidate, metric: TaskMetricName, confidence: float) -> Estimate:
    """How much worse `other` is than `base`, paired over the samples of the set that both were scored on."""
    scale = scale_of(metric)
    if base.score is None or other.score is None:
        raise ValueError("both need a score")
    value = round((base.score - other.score) * scale.better, _DIGITS)
    alike = base.samples == other.samples
    resamples = paired(base.resamples, other.resamples, scale.better) if alike else ()
    room = scale.highest - scale.lowest if scale.counted else 0.0
    low, high = interval(value, resamples, other.samples, confidence=confidence, room=room)
    return Estimate(value=value, low=round(low, _DIGITS), high=round(high, _DIGITS), samples=other.samples)
