"""The stages of a rollout: pods start and are checked, shares are verified and watched, all traffic moves."""

from dataclasses import replace

from shiplift.runtime.serving.kubernetes import diagnosis
from shiplift.runtime.serving.operator import shares
from shiplift.runtime.serving.operator.evidence import Evidence, Hold, since
from shiplift.runtime.serving.operator.measurements import CheckAnswers, ReadCounters
from shiplift.runtime.serving.operator.resources import ConditionType, Reason
from shiplift.runtime.serving.operator.rollout import RolloutState
from shiplift.runtime.serving.operator.scaling.replicas import needed
from shiplift.runtime.serving.operator.shares import Judgement
from shiplift.runtime.serving.operator.step import RolloutStep, why_not_ready
from shiplift.runtime.serving.operator.zero.steps import resting

_ANSWER_S = 60.0  # how long ready pods may take to answer golden requests
_MARGIN = 0.01  # how much larger the new revision's share of failed requests may be


def next_step(rollout: RolloutState) -> RolloutStep:
    """The next step of a rollout, even if another process began it."""
    if problem := rollout.unusable():
        return rollout.keep(*problem)
    if given_up := rollout.given_up():
        return rollout.keep(given_up.reason, given_up.message, failed=rollout.target)
    if rollout.observed.alarm and rollout.observed.ready(rollout.before):
        why = f"{rollout.target} was rolled back while baking: {rollout.observed.alarm}."
        return rollout.give_up(Reason.BAKE_ALARM, why)
    # The rollout of another revision was interrupted. A share is only ever verified between two revisions.
    if sum(percent > 0 for percent in rollout.others.values()) > 1:
        weights = shares.only(rollout.before, rollout.weights)
        return rollout.step(weights, Reason.MOVING, f"giving the traffic back to {rollout.before} first")
    share = rollout.weights.get(rollout.target, 0)
    if share == 100 and rollout.observed.activation:
        return resting(rollout)
    return _start(rollout) if share == 0 else _canary(rollout, share) if share < 100 else _last(rollout)


# --- before it has traffic ---


def _start(rollout: RolloutState) -> RolloutStep:
    began = rollout.evidence.waiting.get(rollout.target, rollout.observed.now)
    evidence = replace(rollout.evidence, waiting={rollout.target: began})
    least = needed(rollout.observed, rollout.spec, rollout.others)
    names = rollout.observed.names(rollout.target)
    ready = [min(least, len(rollout.observed.ready_in(name))) for name in names]
    waited = rollout.observed.now - began
    if sum(ready) < least * len(names):
        why = why_not_ready(rollout.observed, rollout.target)
        sentence = f"{why.sentence}. {why.do}" if why else ""
        if waited >= diagnosis.patience_s(why, rollout.observed.cluster.ready_timeout_s):
            sentence = sentence or "its pods give no reason. See `kubectl describe pods`."
            return rollout.give_up(Reason.START_FAILED, f"{rollout.target} did not become ready: {sentence}")
        pods = f"{sum(ready)} of {least * len(names)} pods"
        message = f"{pods} of {rollout.target} are ready{': ' if sentence else ''}{sentence}"
        return rollout.step(rollout.weights, Reason.STARTING, message, evidence=evidence)
    return _check_answers(rollout, evidence, waited)


def _check_answers(rollout: RolloutState, evidence: Evidence, waited: float) -> RolloutStep:
    wrong = evidence.answers.get(rollout.target)
    if wrong:
        return rollout.give_up(Reason.WRONG_ANSWERS, wrong)
    if wrong == "":
        return rollout.advance(0)
    if waited > rollout.observed.cluster.ready_timeout_s + _ANSWER_S:
        return rollout.give_up(Reason.START_FAILED, f"the pods of {rollout.target} don't answer golden requests.")
    message = f"checking golden requests to {rollout.target}"
    measure = (CheckAnswers(revision=rollout.target),)
    return rollout.step(rollout.weights, Reason.STARTING, message, evidence=evidence, measure=measure)


# --- while it has some ---


def _canary(rollout: RolloutState, percent: int) -> RolloutStep:
    if not rollout.observed.ready(rollout.target):
        return rollout.give_up(Reason.CANARY_FAILED, f"{rollout.target} lost its pods.")
    if not rollout.observed.ready(rollout.before):
        return rollout.advance(99)  # the old revision can't answer its part, so a share would prove nothing
    if not rollout.spec.rollout.canary_percent:
        return rollout.advance(percent)  # asked for at once, as by an abort: no share is watched on the way
    hold = rollout.evidence.hold
    if hold is not None and hold.weights == rollout.weights:
        return _hold(rollout, hold, percent)
    return _ask(rollout, percent)


def _ask(rollout: RolloutState, percent: int) -> RolloutStep:
    """Verifies a share on the data plane: routes that are written may not have reached the proxies yet."""
    share = rollout.share_now()
    judgement = shares.judge(rollout.observed, share, rollout.target)
    if judgement is Judgement.HOLDS:
        return _hold(rollout, Hold(weights=rollout.weights, since=rollout.observed.now), percent)
    if judgement in (Judgement.FAILED, Judgement.TOO_LATE):
        return rollout.give_up(*rollout.why(share, judgement))
    message = f"verifying that {rollout.target} answers {percent} % of the requests"
    return rollout.step(rollout.weights, Reason.CANARY, message, **rollout.asking(share, percent))


def _hold(rollout: RolloutState, hold: Hold, percent: int) -> RolloutStep:
    """Watches a share. The new revision is compared with the old one, since some requests fail on any revision."""
    new = since(hold.first.get(rollout.target, {}), hold.last.get(rollout.target, {}))
    old = since(hold.first.get(rollout.before, {}), hold.last.get(rollout.before, {}))
    if new.failed / max(1, new.total) > old.failed / max(1, old.total) + _MARGIN:
        return rollout.give_up(
            Reason.CANARY_FAILED,
            f"{rollout.target} failed {new.failed} of its {new.total} requests, {rollout.before} {old.failed} of "
            f"{old.total}. See the pods' logs.",
        )
    if hold.last and rollout.observed.now - hold.since >= rollout.spec.rollout.hold_seconds:
        return rollout.advance(percent)
    return rollout.step(
        rollout.weights,
        Reason.HOLDING,
        f"{rollout.target} has {percent} % of the traffic and is watched",
        evidence=replace(rollout.evidence, share=None, hold=hold),
        measure=(ReadCounters(revisions=(rollout.target, rollout.before)),),
    )


# --- once it has all ---


def _last(rollout: RolloutState) -> RolloutStep:
    verified = rollout.evidence.verified
    # An operator that has just started trusts the status of the one before it.
    if verified is None and rollout.observed.status.revision == rollout.target:
        verified = rollout.target if rollout.observed.status.holds(ConditionType.READY) else ""
    if verified == rollout.target:
        evidence = replace(rollout.evidence, verified=verified, share=None, hold=None, waiting={})
        message = f"{rollout.target} serves"
        settled = rollout.step(rollout.weights, Reason.SERVING, message, evidence=evidence, moved=True, again_s=10)
        return rollout.drain(rollout.target, settled)
    if not rollout.observed.ready(rollout.target):
        return _lost(rollout)
    return _verify(rollout)


def _lost(rollout: RolloutState) -> RolloutStep:
    if rollout.before and rollout.observed.ready(rollout.before):
        return rollout.give_up(Reason.CANARY_FAILED, f"{rollout.target} lost its pods.")
    why = why_not_ready(rollout.observed, rollout.target)
    message = f"no pod of {rollout.target} is ready{f': {why.sentence}. {why.do}' if why else ''}"
    return rollout.step(rollout.weights, Reason.NO_PODS, message)


def _verify(rollout: RolloutState) -> RolloutStep:
    """Verifies that all requests are answered by the target."""
    share = rollout.share_now()
    judgement = shares.judge(rollout.observed, share, rollout.target)
    if judgement is Judgement.HOLDS:
        return _last(replace(rollout, evidence=replace(rollout.evidence, verified=rollout.target)))
    asking = rollout.asking(share, 100)
    if judgement is Judgement.UNKNOWN:
        message = f"verifying that {rollout.target} answers all requests"
        return rollout.step(rollout.weights, Reason.MOVING, message, **asking)
    reason, message = rollout.why(share, judgement)
    if rollout.before and rollout.observed.ready(rollout.before):
        return rollout.give_up(reason, message)
    return rollout.step(rollout.weights, reason, message, stalled=True, **asking | {"again_s": 10})
