"""The operator's decision: from what is seen of a service to what to do about it, without side effects.

It is level-based: the same state leads to the same decision, however it came about. So the operator can be killed and
restarted at any moment, and can look as often as it likes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shiplift.runtime.serving.kubernetes.objects.names import PACKAGE, Object
from shiplift.runtime.serving.operator import shares, wanted
from shiplift.runtime.serving.operator.conditions import (
    KubernetesEvent,
    events_of,
    leads_traffic,
    observed_status,
    unusable,
)
from shiplift.runtime.serving.operator.evidence import Evidence, Key, Patch
from shiplift.runtime.serving.operator.groups.weighing import is_rebalanced
from shiplift.runtime.serving.operator.hosting.moving import is_move, moving, with_server
from shiplift.runtime.serving.operator.measurements import Measurement
from shiplift.runtime.serving.operator.observed import Observed
from shiplift.runtime.serving.operator.repair import is_right, key_of
from shiplift.runtime.serving.operator.resources import ServiceSpec, ServiceStatus
from shiplift.runtime.serving.operator.rollout import RolloutState
from shiplift.runtime.serving.operator.scaling import bursts
from shiplift.runtime.serving.operator.stages import next_step
from shiplift.runtime.serving.operator.step import RolloutStep
from shiplift.runtime.serving.operator.upkeep import fronts
from shiplift.runtime.serving.operator.upkeep.chores import chores
from shiplift.runtime.serving.operator.upkeep.history import to_prune
from shiplift.runtime.serving.operator.upkeep.surge import is_surge
from shiplift.runtime.serving.operator.zero import phases

_REST_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do now, in this order: apply, patch, delete, write the status, record events, measure. Then look again.

    `status` is None if the present one is right. `evidence` replaces what was known; measurements add to it.
    """

    evidence: Evidence
    apply: tuple[Object, ...] = ()
    patch: tuple[Patch, ...] = ()
    delete: tuple[Key, ...] = ()
    status: ServiceStatus | None = None
    events: tuple[KubernetesEvent, ...] = ()
    measure: tuple[Measurement, ...] = ()
    again_s: float = _REST_S

    @property
    def writes(self) -> bool:
        """Whether it changes anything in the cluster."""
        return bool(self.apply or self.patch or self.delete or self.status)


def next_action(observed: Observed) -> Decision:
    """What to do about the difference between what a service wants and what there is."""
    spec = observed.spec
    if spec is None:
        status = unusable(observed)
        return _told(observed, Decision(evidence=observed.evidence), status)
    observed = bursts.judged(phases.begun(observed), spec)
    step = next_step(RolloutState.of(observed, spec))
    activation = phases.after(observed, spec, step)
    if activation is not observed.activation:  # it depends on the step, and the step on it: decide once more
        observed = phases.changed(observed, activation)
        step = next_step(RolloutState.of(observed, spec))
    bodies = _wanted(observed, spec, step)
    again = wanted.front(observed, spec, step.weights) if _failed(observed, step) else []
    apply = [body for body in bodies if body in again or not is_right(body, observed)]
    repaired = _repaired(observed, step, apply)
    evidence = _after_writing(observed, spec, step, apply, repaired)
    moves = moving(observed, evidence)
    again_s = 0.5 if apply else min(moves.again_s, step.again_s)
    upkeep = chores(observed, step.weights, moves.evidence, again_s, busy=bool(apply) and not again)
    status = with_server(observed, observed_status(observed, step, repaired=repaired))
    surplus = _to_delete(observed, spec, step, bodies)
    decision = Decision(
        evidence=upkeep.evidence,
        apply=tuple(apply),
        patch=(*moves.patch, *upkeep.patch),
        delete=(*surplus, *moves.delete, *upkeep.delete, *to_prune(observed, spec, status)),
        events=(*moves.events, *upkeep.events),
        measure=(*step.measure, *moves.measure, *phases.readings(observed, spec, step, upkeep.measure)),
        again_s=upkeep.again_s,
    )
    return _told(observed, decision, status)


def _wanted(observed: Observed, spec: ServiceSpec, step: RolloutStep) -> list[Object]:
    """All objects that should exist. Services come before the routes that lead to them."""
    kept = _kept(spec, step)
    bodies = wanted.workloads(observed, spec, kept)
    return [*bodies, *wanted.front(observed, spec, step.weights), *wanted.monitoring(observed, spec, kept)]


def _failed(observed: Observed, step: RolloutStep) -> bool:
    """Whether the front has just failed although its objects look right. Then they are written again, once."""
    return step.moved and fronts.just_failed(observed.evidence)


def _after_writing(
    observed: Observed, spec: ServiceSpec, step: RolloutStep, apply: Sequence[Object], repaired: Sequence[Object]
) -> Evidence:
    """What is still known once these objects are applied, some of them to undo a change from outside.

    If no route led to another revision, no other can have got the traffic: it is enough that each route answers again.
    """
    put_back = any(map(leads_traffic, repaired))
    if put_back and step.moved and not shares.leads_elsewhere(observed, spec.revision):
        return step.evidence.put_back(observed.now)
    if _moves_traffic(observed, spec, step, apply):
        return replace(step.evidence.moved(), put_back_at=observed.now if put_back else step.evidence.put_back_at)
    return step.evidence


def _moves_traffic(observed: Observed, spec: ServiceSpec, step: RolloutStep, apply: Sequence[Object]) -> bool:
    """Whether requests may go elsewhere after this, so that what was measured through the front no longer counts.

    If the front was right and only drops revisions without traffic, requests go where they went before.
    """
    leading = [body for body in apply if leads_traffic(body) and not _is_shifted(observed, body)]
    before = shares.current(observed)
    same = {name: percent for name, percent in before.items() if percent} == {
        name: percent for name, percent in step.weights.items() if percent
    }
    if any(map(_of_revision, leading)) or not same:
        return bool(leading)
    return bool(leading) and not all(
        is_right(body, observed) or _is_shifted(observed, body) for body in wanted.front(observed, spec, before)
    )


def _to_delete(observed: Observed, spec: ServiceSpec, step: RolloutStep, bodies: Sequence[Object]) -> list[Key]:
    """The objects of revisions that have no traffic on any route and won't get any, and obsolete ones of the others."""
    dropped, kept = set(shares.current(observed)) - set(step.weights), _kept(spec, step)
    surplus = [
        key_of(body)
        for body in wanted.surplus(observed, kept, dropped)
        if not shares.has_traffic(observed, observed.revision_of(body["metadata"]["labels"][PACKAGE]))
    ]
    obsolete = [key_of(body) for body in wanted.obsolete(observed, kept, bodies)]
    return [*surplus, *(key for key in obsolete if key not in surplus)]


def _kept(spec: ServiceSpec, step: RolloutStep) -> set[str]:
    """The revisions whose objects should exist."""
    return {*step.weights} | ({spec.revision} if not step.failed else set())


def _of_revision(body: Object) -> bool:
    return PACKAGE in (body["metadata"].get("labels") or {})


def _repaired(observed: Observed, step: RolloutStep, apply: Sequence[Object]) -> list[Object]:
    """The objects that were changed or deleted from outside, if a serving revision or the front needs them.

    An object that differs because the operator itself wants a change, such as a new share or one more pod, is not
    repaired but updated, and must not make the service look broken.
    """
    before = shares.current(observed)
    if step.weights != before or observed.status.observed_generation != observed.generation:
        return []
    if observed.activation is not observed.status.activation:
        return []
    return [
        body
        for body in apply
        if not is_right(body, observed)
        and not is_surge(observed, body)
        and not _is_shifted(observed, body)
        and not bursts.is_raised(observed, body)
        and (not _of_revision(body) or before.get(observed.revision_of(body["metadata"]["labels"][PACKAGE])))
    ]


def _is_shifted(observed: Observed, body: Object) -> bool:
    """Whether requests go to other pods of the same revision, by the operator's own choice."""
    return is_rebalanced(observed, body) or is_move(observed, body)


def _told(observed: Observed, decision: Decision, status: ServiceStatus) -> Decision:
    if status == observed.status:
        return decision
    events = (*decision.events, *events_of(observed.status, status))
    return replace(decision, status=status, events=events)
