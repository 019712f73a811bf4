"""The rollout of a revision. Its progress follows from what is seen, so that any process can continue it.

The pods start beside the serving ones. Once they answer golden requests correctly, the revision gets its shares of the
traffic, one after another; each is verified on the data plane and watched. The first failure gives all traffic back to
the previous revision, and the new one is not tried again until the spec changes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from shiplift.runtime.base.names import dns_name
from shiplift.runtime.serving.operator import shares
from shiplift.runtime.serving.operator.evidence import (
    Evidence,
    GivenUp,
    Idle,
    Share,
    Weights,
)
from shiplift.runtime.serving.operator.measurements import AskFront, ReadCounters
from shiplift.runtime.serving.operator.observed import Observed
from shiplift.runtime.serving.operator.resources import ConditionType, Reason, ServiceSpec
from shiplift.runtime.serving.operator.shares import Judgement, requests_needed
from shiplift.runtime.serving.operator.step import BUSY_S, RolloutStep

_QUIET_S, _DRAIN_S = 3.0, 60.0
_AGAIN = "Fix that, then change the spec: any change makes the operator try again."


@dataclass(frozen=True, kw_only=True)
class RolloutState:
    """The rollout as one look shows it: `weights` are the current traffic shares."""

    observed: Observed
    spec: ServiceSpec
    weights: Weights
    evidence: Evidence
    others: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, observed: Observed, spec: ServiceSpec) -> "RolloutState":
        """The rollout of the revision that the spec wants."""
        weights = shares.current(observed)
        others = {name: percent for name, percent in weights.items() if name != spec.revision}
        evidence = observed.evidence.at(observed.generation)
        return cls(observed=observed, spec=spec, weights=weights, evidence=evidence, others=others)

    @property
    def target(self) -> str:
        """The revision that should serve."""
        return self.spec.revision

    @property
    def before(self) -> str:
        """The revision that served before; empty if none did."""
        return shares.main(self.observed, dict(self.others))

    # --- revisions that can't be rolled out ---

    def unusable(self) -> tuple[Reason, str] | None:
        """Why the wanted revision can't be used; None if it can."""
        seen = self.observed.revisions.get(self.target)
        if seen is None:
            do = "Create it, or name another in `spec.revision`."
            return Reason.NO_REVISION, f"there is no TritonRevision {self.target}. {do}"
        problem = seen.problem
        if self.target == dns_name(self.spec.model):
            problem = "its name is that of the model's own Service"
        if seen.package and seen.package.model != self.spec.model:
            problem = f"its package is of model {seen.package.model!r}, not {self.spec.model!r}"
        if problem:
            return Reason.INVALID_REVISION, f"{self.target} can't be used: {problem}. Name another in `spec.revision`."
        return None

    def given_up(self) -> GivenUp | None:
        """The failure of this generation's rollout, from memory or, after a restart, from the status."""
        if self.evidence.given_up and self.evidence.given_up.revision == self.target:
            return self.evidence.given_up
        stalled = self.observed.status.condition(ConditionType.STALLED)
        if self.observed.status.failed_revision != self.target or stalled is None or stalled.status != "True":
            return None
        if stalled.observed_generation != self.observed.generation:
            return None
        return GivenUp(revision=self.target, reason=stalled.reason, message=stalled.message)

    def keep(self, reason: Reason, message: str, *, failed: str = "") -> RolloutStep:
        """Keeps what serves, whatever the spec wants."""
        main = shares.main(self.observed, self.weights, avoid=failed)
        weights = shares.only(main, self.weights) if main else {}
        if weights == self.weights:
            return self.drain(main, self.step(weights, reason, message, stalled=True, failed=failed, again_s=10))
        return self.step(weights, reason, message, stalled=True, failed=failed)

    def give_up(self, reason: Reason, message: str) -> RolloutStep:
        """Gives all traffic back; the revision is not tried again until the spec changes."""
        kept = f" {self.before} serves." if self.before else ""
        given_up = GivenUp(revision=self.target, reason=reason, message=f"{message}{kept} {_AGAIN}")
        again = replace(self, evidence=replace(self.evidence, given_up=given_up, share=None, hold=None))
        return again.keep(given_up.reason, given_up.message, failed=self.target)

    # --- with traffic ---

    def advance(self, percent: int) -> RolloutStep:
        """Gives the target its next share of the traffic."""
        target, before = (self.observed.package(name) for name in (self.target, self.before))
        # A sequence's requests would be spread over both versions, but only one of them has its state.
        sequences = any(package.stateful for package in (target, before) if package)
        can_split = self.before and self.observed.cluster.gateway and not sequences
        steps = self.spec.rollout.canary_percent if can_split and self.observed.ready(self.before) else ()
        share = next((step for step in steps if step > percent), 100)
        weights = dict.fromkeys(sorted({*self.weights, self.target}), 0) | {self.target: share}
        if self.before:
            weights[self.before] = 100 - share
        reason = Reason.CANARY if share < 100 else Reason.MOVING
        evidence = replace(self.evidence, share=None, hold=None, verified="")
        return self.step(weights, reason, f"giving {self.target} {share} % of the traffic", evidence=evidence)

    def drain(self, main: str, step: RolloutStep) -> RolloutStep:
        """Drops revisions without traffic after their last request, but for one that the traffic may go back to.

        A revision is done when its counters have not changed for a moment, or when it has had time enough: one request
        that never ends must not keep its pods for ever.
        """
        stay = {main, self.observed.kept}
        idle = {name: self._idle(name) for name in self.weights if name not in stay}
        if not idle:
            return replace(step, evidence=replace(step.evidence, idle={}))
        now = self.observed.now
        busy = {
            name: seen
            for name, seen in idle.items()
            if now - seen.changed_at < _QUIET_S and now - seen.since < _DRAIN_S
        }
        names = tuple(sorted(busy))
        return replace(
            step,
            weights={name: percent for name, percent in step.weights.items() if name in stay or name in busy},
            evidence=replace(step.evidence, idle=busy),
            measure=(*step.measure, ReadCounters(revisions=names, idle=True)) if names else step.measure,
            reason=Reason.DRAINING if step.moved and names else step.reason,
            message=f"waiting for the last requests of {', '.join(names)}" if step.moved and names else step.message,
            again_s=BUSY_S,
        )

    def _idle(self, name: str) -> Idle:
        return self.evidence.idle.get(name) or Idle(since=self.observed.now, changed_at=self.observed.now)

    def share_now(self) -> Share:
        """What is known about the current share on the data plane."""
        share = self.evidence.share
        return (
            share if share and share.weights == self.weights else Share(weights=self.weights, since=self.observed.now)
        )

    def asking(self, share: Share, percent: int) -> dict[str, Any]:
        """The parts of a step that asks again, with pauses that double."""
        pause = min(16, 2 ** (share.tries - 1)) if share.tries else 0
        left = share.tried_at + pause - self.observed.now
        evidence = replace(self.evidence, share=share)
        if share.tries and left > 0:
            return {"evidence": evidence, "again_s": min(BUSY_S, left)}
        ask = AskFront(target=self.target, weights=self.weights, requests=requests_needed(percent))
        return {"evidence": evidence, "measure": (ask,), "again_s": 0.2}

    def why(self, share: Share, judgement: Judgement) -> tuple[Reason, str]:
        """Why a share does not hold."""
        seen = shares.describe(share, self.target)
        if judgement is Judgement.FAILED:
            return Reason.CANARY_FAILED, f"a request through the front failed: {seen}. See the pods' logs."
        return Reason.TRAFFIC_NOT_MOVED, (
            f"{self.target} should get {share.weights[self.target]} % of the traffic, but after "
            f"{shares.SETTLE_S:.0f} s it answered: {seen}. Check the routes' and the gateway's status."
        )

    def step(self, weights: Weights, reason: Reason, message: str, **parts: Any) -> RolloutStep:
        """A step with these shares; `parts` are its other fields."""
        parts = {"evidence": self.evidence} | parts
        return RolloutStep(weights=weights, reason=reason, message=message, **parts)
