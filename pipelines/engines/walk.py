"""The loop over stages, the same on every engine: which are cache hits, which run, what each one takes, what ends it.

An engine is a subclass: a walk in this process over a whole pipeline, or one in a pod over the pod's stages. An engine
overrides the methods under "the seam", each of which has a default.

Three things stay with each engine, because they are not loops over stages:
- The order of pods. Argo decides it: the Workflow is a graph that Argo runs even while none of our processes does.
- How the release ended. A walk over the whole pipeline knows. On a cluster, `argo.ending` works it out from what the
  pods left, and some of those were killed.
- An error in the exit stage. On a machine it is raised to the dispatcher, which tries again later. On a cluster the
  exit stage is a pod like any other, and Argo retries it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from shiplift.pipelines.engines.attempt import Attempt, Done, ResultCache, Retry, once
from shiplift.pipelines.engines.cache_key import has_key
from shiplift.pipelines.engines.interruption import shielded
from shiplift.pipelines.graph import FanOut, Stage
from shiplift.runtime.confinement import workplace
from shiplift.runtime.records.base import Record, Sections
from shiplift.runtime.records.release import Event, StageRun
from shiplift.runtime.records.site import SandboxSettings, Site


@dataclass(kw_only=True)
class Walk:
    """A walk over stages: the records so far by name, how each stage went, and how the last attempt ended.

    `ahead` lists all stages that may run, in order: while one runs, the next one's sandbox is started below `scratch`.
    `check` raises `Interrupted` if the walk has to stop.
    """

    known: dict[str, Any]
    ahead: tuple[Stage, ...]
    cache: ResultCache | None = None
    scratch: Path | None = None
    check: Callable[[], None] = lambda: None
    runs: list[StageRun] = field(default_factory=list)
    last: Done | None = None
    _pending: list[Attempt] = field(default_factory=list)

    def over(self, nodes: Iterable[Stage | FanOut], target: str = "") -> bool:
        """Walks over stages and fan-outs in order; stops at the first that fails or objects, and returns False."""
        return all(
            self._fan_out(node) if isinstance(node, FanOut) else self._stage(node, self.known, target) for node in nodes
        )

    def attempt(self, stage: Stage, arguments: Callable[[], Mapping[str, Any]], target: str = "") -> Attempt:
        """An attempt at a stage, with this engine's retries, listener and delivery."""
        return Attempt(
            stage=stage,
            arguments=arguments,
            target=target,
            cache=self.cache,
            retry=self.retry(stage, target),
            listener=partial(self._on_progress, stage, target),
            deliver=partial(self.deliver, stage),
        )

    def note(self, run: StageRun) -> None:
        """Records how a stage went, and tells listeners."""
        self.runs.append(run)
        self.tell(Event.finished(run))

    # --- the seam: what an engine adds ---

    def enter(self, stage: Stage, target: str) -> None:
        """Called before a stage is looked up in the cache, and again before its step runs."""

    def tell(self, event: Event) -> None:
        """Passes an event on to those who follow the release."""

    def retry(self, stage: Stage, target: str) -> Retry:  # noqa: ARG002
        """How a failing call is retried."""
        return once

    def arguments(self, stage: Stage, known: Mapping[str, Any]) -> Mapping[str, Any]:
        """A step's arguments by name."""
        return {name: known[name] for name in stage.takes}

    def deliver(self, stage: Stage, record: Record) -> None:
        """Takes a stage's record, before the stage counts as done."""

    def left(self, stage: Stage, done: Done) -> None:
        """Called after a stage."""

    def items(self, fan_out: FanOut) -> Iterator[tuple[str, dict[str, Any]]]:
        """The items of a fan-out that run here: each item's name, and the records that only its stages take."""
        for item in getattr(self.known[fan_out.source], fan_out.attribute):
            yield item.name, {fan_out.item.parameter(): item}

    # --- the loop ---

    def _fan_out(self, fan_out: FanOut) -> bool:
        given = []
        for target, records in self.items(fan_out):
            inside = self.known | records
            if not all(self._stage(stage, inside, target) for stage in fan_out.stages):
                return False
            given.append(inside[fan_out.gives.parameter()])
        self.known[fan_out.gives.parameter()] = tuple(given)
        return True

    def _stage(self, stage: Stage, known: dict[str, Any], target: str) -> bool:
        """Runs a stage or recalls its record; returns whether the walk goes on.

        A stage with an effect can be recalled too. Its effect is set up again only when a later stage needs it.
        """
        self.check()
        attempt = self.attempt(stage, lambda: self.arguments(stage, known), target)
        with shielded() if stage.at.shielded else nullcontext():
            self._begin(attempt)
            done = attempt.recall() if has_key(stage) else None
            if done is None:
                if not self._set_up_again(attempt, known):
                    return False
                self.enter(stage, target)  # again: its deadline counts from here
                self._warm_next(stage)
                done = attempt.make()
            elif stage.at.keep == "effect":
                self._pending.append(attempt)
            return self._take(attempt, done, known)

    def _begin(self, attempt: Attempt) -> None:
        self.enter(attempt.stage, attempt.target)
        self._tell_start(attempt)

    def _tell_start(self, attempt: Attempt) -> None:
        self.tell(Event(stage=attempt.stage.name, target=attempt.target, kind="started"))

    def _set_up_again(self, user: Attempt, known: dict[str, Any]) -> bool:
        """Sets up the effects that a stage uses and that were cache hits; returns whether that went well."""
        again = [each for each in self._pending if each.stage.step is user.stage.at.uses]
        for attempt in again:
            self._pending.remove(attempt)
            self.runs = [run for run in self.runs if (run.name, run.target) != (attempt.stage.name, attempt.target)]
            self._begin(attempt)
            if not self._take(attempt, attempt.make(), known):
                return False
        if again:
            self._tell_start(user)
        return True

    def _warm_next(self, stage: Stage) -> None:
        """Starts the next sandbox while `stage` runs: after a cache miss, later stages will most likely run too."""
        if self.scratch is None or stage.at.keep != "result":
            return
        later = self.ahead[self.ahead.index(stage) + 1 :]
        if entry := next((each.at.warm for each in later if each.at.warm), None):
            site = self.known.get(Site.parameter())
            workplace.warm(entry, self.scratch, site.sandbox if isinstance(site, Site) else SandboxSettings())

    def _take(self, attempt: Attempt, done: Done, known: dict[str, Any]) -> bool:
        """Records how an attempt went and adds its record; returns False if it failed or objects."""
        self.last = done
        if done.record is not None:
            known |= parts_of(done.record)
        self.note(done.run)
        self.left(attempt.stage, done)
        return done.exit_code == 0

    def _on_progress(self, stage: Stage, target: str, message: str, done: float | None) -> None:
        self.check()
        self.tell(Event(stage=stage.name, target=target, kind="progress", message=message, done=done))


def parts_of(record: Record) -> dict[str, Record]:
    """A record and its sections, by parameter name."""
    sections = record.parts() if isinstance(record, Sections) else ()
    return {record.parameter(): record} | {name: getattr(record, name) for name in sections}
