"""The step of a service that has no pods, is about to lose them, or is getting them back."""

from shiplift.runtime.serving.operator.resources import Activation, Reason
from shiplift.runtime.serving.operator.rollout import RolloutState
from shiplift.runtime.serving.operator.step import RolloutStep, why_not_ready


def resting(rollout: RolloutState) -> RolloutStep:
    """The step while requests go to the activator."""
    target, activation = rollout.target, rollout.observed.activation
    if activation is Activation.WAKING:
        why = why_not_ready(rollout.observed, target)
        message = f"a pod of {target} starts{f': {why.sentence}. {why.do}' if why else ''}"
        return rollout.step(rollout.weights, Reason.WAKING, message)
    if activation is Activation.DRAINING:
        return rollout.drain(target, rollout.step(rollout.weights, Reason.SERVING, f"{target} serves", moved=True))
    step = rollout.step(
        rollout.weights, Reason.SCALED_TO_ZERO, f"{target} has no pods until a request comes", moved=True, again_s=10
    )
    return rollout.drain(target, step)
