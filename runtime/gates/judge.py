"""Judges a model's precisions: one that can't pass is not packaged, and a model is refused if none of them can."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from shiplift.runtime.gates.checks import check
from shiplift.runtime.gates.quality import jpeg_checks, parity_check, regression_check, score_check
from shiplift.runtime.gates.remedies import CheckKind
from shiplift.runtime.records.model import ParityCase
from shiplift.runtime.records.precision import Candidate, Candidates, scale_of
from shiplift.runtime.records.verdict import Check, Outcome, Scored
from shiplift.runtime.spec.model import Data, Quality


@dataclass(frozen=True, kw_only=True)
class Judge:
    """Judges precisions by their scores; `champion` is None if there is none to compare with.

    `worse` is how much worse a score may be than the champion's, as `spec.measurement.Regression` says.
    """

    version: int
    target: str
    candidates: Candidates
    quality: Quality
    data: Data
    champion: Scored | None
    worse: float | None

    def verdict(self, parity: tuple[ParityCase, ...]) -> tuple[Check, ...]:
        """The checks of parity and of the most accurate candidate: if that one fails, all fail."""
        same = tuple(filter(None, (parity_check(parity, self.quality),)))
        if self.candidates.kept:
            return (*same, *self.checks(self._best()))
        dropped = (f"{each.described}: {each.dropped}" for each in self.candidates.candidates)
        unbuilt = (note for note in self.candidates.notes if "was not built" in note)
        reason = "; ".join((*unbuilt, *dropped))
        none_kept = check(CheckKind.PRECISION, "precision", 0, 1, "candidates", Outcome.FAIL, reason)
        return (*same, none_kept)

    def checks(self, candidate: Candidate) -> tuple[Check, ...]:
        """A candidate's score against its limit and against the champion's."""
        scores = Scored(
            version=self.version,
            target=self.target,
            score=candidate.score,
            resamples=candidate.resamples,
            samples=candidate.samples,
            metric=self.candidates.metric,
            constant_score=self.candidates.constant_score,
            validation=self.candidates.validation,
            jpegs=self.candidates.jpegs,
        )
        absolute = score_check(scores, self.quality, self.data)
        regression = regression_check(self.champion, scores, self.worse, self.quality)
        return tuple(filter(None, (absolute, *jpeg_checks(scores, self.quality), regression)))

    def passes(self, candidate: Candidate) -> bool:
        """Whether a candidate's score lets it be promoted."""
        return all(each.verdict is Outcome.PASS for each in self.checks(candidate))

    def notes(self) -> Iterator[str]:
        """Why kept candidates are not packaged."""
        for candidate in self.candidates.kept:
            reasons = [each.reason for each in self.checks(candidate) if each.verdict is not Outcome.PASS]
            if reasons:
                yield f"{candidate.described} can't pass: {'; '.join(reasons)}"

    def _best(self) -> Candidate:
        sign = scale_of(self.candidates.metric).better if self.candidates.metric else 1

        def goodness(candidate: Candidate) -> float:
            score = candidate.score
            return -math.inf if score is None or math.isnan(score) else score * sign

        return max(self.candidates.kept, key=goodness)
