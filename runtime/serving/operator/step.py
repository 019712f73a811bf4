"""One step of a rollout: what it does after one look."""

from dataclasses import dataclass

from shiplift.runtime.serving.kubernetes import diagnosis
from shiplift.runtime.serving.operator.evidence import Evidence, Weights
from shiplift.runtime.serving.operator.measurements import Measurement
from shiplift.runtime.serving.operator.observed import Observed
from shiplift.runtime.serving.operator.resources import Reason

BUSY_S = 1.0


@dataclass(frozen=True, kw_only=True)
class RolloutStep:
    """What a rollout does now: the traffic shares, what to measure next, and what the status says.

    `moved`: the wanted revision has all traffic, and that is verified. `stalled`: the operator can do no more for it.
    `failed` is the revision that was given up.
    """

    weights: Weights
    reason: Reason
    message: str
    evidence: Evidence
    measure: tuple[Measurement, ...] = ()
    moved: bool = False
    stalled: bool = False
    failed: str = ""
    again_s: float = BUSY_S

    @property
    def settled(self) -> bool:
        """Whether the rollout has nothing left to do."""
        return self.moved and self.reason in (Reason.SERVING, Reason.SCALED_TO_ZERO)


def why_not_ready(observed: Observed, revision: str) -> diagnosis.Diagnosis | None:
    """The worst reason why a revision's pods are not ready."""
    deployments = (observed.live.get(("Deployment", name)) or {} for name in observed.names(revision))
    if refused := next(filter(None, map(diagnosis.of_deployment, deployments)), None):
        return refused
    problems = [pod.problem for pod in observed.pods_of(revision) if pod.problem]
    return min(problems, key=lambda problem: problem.prospect, default=None)
