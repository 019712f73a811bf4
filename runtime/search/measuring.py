"""Carries out a search: measures what it asks for, in short windows first, then finalists in long ones.

Every trial is stored at once, so a killed search resumes where it stopped.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from shiplift.runtime.base.errors import GoldenMismatch
from shiplift.runtime.base.progress import progress
from shiplift.runtime.measure.sweep import enough
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.measurement import Differing, Trial
from shiplift.runtime.records.proof import ServedProof
from shiplift.runtime.records.serving import ServingConfig
from shiplift.runtime.search.disturbance import SHARE, Others
from shiplift.runtime.search.planner import Search
from shiplift.runtime.search.served_proof import served_proof
from shiplift.runtime.search.space import Point
from shiplift.runtime.search.workbench import Workbench, describe, measure_point
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.journal import Journal

_COARSE = 3  # the search's windows are this many times shorter than a finalist's
_MIN_WINDOW_MS = 200  # in shorter windows the ramp-up makes small models seem up to a quarter slower
_FINAL_SHARE = 0.3  # of the time budget goes to the finals


@dataclass(frozen=True, kw_only=True)
class SearchMeasuring:
    """A search, the workbench that measures for it, the journal that keeps its trials, and who disturbs them."""

    workbench: Workbench
    search: Search
    journal: Journal[Trial]
    others: Others
    repeated_s: list[float] = field(default_factory=list)  # seconds spent on repeating each trial

    def explore(self) -> bool:
        """Measures in short windows until the search ends or its time is up; returns whether it ended by itself.

        Raises:
            MeasurementFailed: no configuration could be measured.
        """
        started = time.monotonic()
        space = self.workbench.space
        budget_s = space.time_budget_s * (1 - _FINAL_SHARE)
        window_ms = min(space.window_ms, max(_MIN_WINDOW_MS, space.window_ms // _COARSE))
        while (point := self.search.ask()) is not None:
            spent = time.monotonic() - started
            if self.search.trials and spent > budget_s:
                return False
            message = f"trial {len(self.search.trials) + 1}: {_described(point)}"
            progress(message, min(spent / budget_s, 1.0))
            self.search.tell(point, self._trial(point, window_ms))
        return True

    def hold_finals(self) -> None:
        """Measures finalists in long windows, in rounds, until time is up; at least the best of the first round.

        A single finalist has nobody to be compared with: if its short windows say enough, they are its measurement.
        """
        space = self.workbench.space
        deadline = time.monotonic() + space.time_budget_s * _FINAL_SHARE
        round_ = 0
        while finalists := self.search.finalists():
            round_ += 1
            if round_ == 1 and self._says_enough(finalists):
                return
            for turn, point in enumerate(finalists, 1):
                if (round_, turn) > (1, 1) and time.monotonic() > deadline:
                    return
                progress(f"finals, round {round_}, {turn} of {len(finalists)}: {_described(point)}")
                self.search.tell_final(point, self._trial(point, space.window_ms, round_))

    def proved(self, store: ArtifactStore) -> tuple[Package, Trial, tuple[Differing, ...]]:
        """The best package whose server answers what the original does, with its proof; and those that were dropped.

        Raises:
            GoldenMismatch: no package is left whose server does.
        """
        differing: list[Differing] = []
        while True:
            package, best = self.search.best()
            if package.questions is None:
                return package, best, tuple(differing)
            progress(f"asking the server what the original was asked: {package.described}")
            proof = served_proof(self.workbench.bench, package, best.config, store)
            if isinstance(proof, ServedProof):
                told = proof.model_copy(update={"dropped": tuple(map(str, differing))})
                return package.model_copy(update={"proof": told}), best, tuple(differing)
            differing.append(proof)
            self.search.drop(package)
            self._require_another(differing)

    def _says_enough(self, finalists: Sequence[Point]) -> bool:
        """Whether there is one finalist, and its short windows agree, and have the answers that a p99 takes.

        Longer windows could not change which point is the best, since no other is left, and its p99 is as certain as
        the load test's, which judges it.
        """
        if len(finalists) != 1 or (short := self.search.short_trial(finalists[0])) is None:
            return False
        load, certain = self.workbench.load, short.within_slo and not short.disturbed_cores
        steady = 0 < short.spread_percent <= load.stability_percent
        return certain and steady and enough(short.throughput_per_s / load.batch, short.window_ms)

    def _require_another(self, differing: Sequence[Differing]) -> None:
        """Measures a package that the search's time did not suffice for, if no other is left."""
        while not self.search.measured:
            if (point := self.search.unmeasured()) is None:
                raise GoldenMismatch(
                    f"no package answers what the model answers: {'; '.join(each.told for each in differing)}",
                    do="Log what was meant, or set another `engine`.",
                )
            self.search.tell(point, self._trial(point, self.workbench.space.window_ms))

    def _trial(self, point: Point, window_ms: int, round_: int = 0) -> Trial:
        """The point's trial from the journal, or else measured now and added to the journal."""
        key = f"{trial_key(point.package, point.config)}, {window_ms} ms, {round_}"
        trial = self.journal.get(key)
        if trial is None:
            left_s = self.workbench.space.time_budget_s * SHARE - sum(self.repeated_s)
            trial, seconds = self.others.undisturbed(
                lambda: measure_point(self.workbench, self.search, point, window_ms), left_s
            )
            self.repeated_s.append(seconds)
            self.journal.add(key, trial)
        return trial


def trial_key(package: Package, config: ServingConfig) -> str:
    """What a journal finds a trial by: the package's bytes and the whole configuration."""
    return f"{package.repository.sha256[:16]} {describe(config)}"


def _described(point: Point) -> str:
    return f"{point.package.described}, {describe(point.config)}"
