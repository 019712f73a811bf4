"""Everything that upkeep does after one look at a service."""

from dataclasses import dataclass, replace

from shiplift.runtime.serving.operator.conditions import KubernetesEvent
from shiplift.runtime.serving.operator.evidence import Evidence, Key, Patch, Weights
from shiplift.runtime.serving.operator.measurements import Measurement
from shiplift.runtime.serving.operator.observed import Observed
from shiplift.runtime.serving.operator.scaling import bursts
from shiplift.runtime.serving.operator.upkeep import fronts, heartbeat, latency, retirement

_BUSY_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Chores:
    """What to do, and after how many seconds at most to look again; `evidence` replaces what was known."""

    evidence: Evidence
    again_s: float
    measure: tuple[Measurement, ...] = ()
    patch: tuple[Patch, ...] = ()
    delete: tuple[Key, ...] = ()
    events: tuple[KubernetesEvent, ...] = ()


def chores(observed: Observed, weights: Weights, evidence: Evidence, again_s: float, *, busy: bool = False) -> Chores:
    """What upkeep asks of a service with these traffic shares.

    `busy`: its objects are being changed. Then the operator looks at them again before it asks the pods, which takes a
    while. Routes that are back come first, too: that they answer is reported before anything else is asked.
    """
    evidence = _tidied(observed, evidence)
    changing = busy and evidence.put_back_at < observed.now
    routes = () if changing else fronts.due(replace(observed, evidence=evidence), weights)
    gone = tuple(retirement.stopped(observed))
    if routes and fronts.is_back(observed, evidence):
        return Chores(evidence=fronts.asked(evidence, observed.now), again_s=_BUSY_S, measure=routes, patch=gone)
    pods = () if busy else heartbeat.due(observed, weights)
    evidence = replace(evidence, beaten_at=observed.now) if pods else evidence
    evidence = fronts.asked(evidence, observed.now) if routes else evidence
    done = Chores(
        evidence=evidence,
        again_s=min(_again_s(observed, evidence, again_s), bursts.again_s(observed, weights)),
        measure=(*routes, *pods, *latency.due(observed, weights), *bursts.due(observed, weights)),
        patch=gone,
        delete=tuple(retirement.to_delete(observed)),
    )
    return _replacing(observed, weights, done)


def _tidied(observed: Observed, evidence: Evidence) -> Evidence:
    """The evidence without that of pods and objects that no longer exist."""
    names = {pod.name for pods in observed.pods.values() for pod in pods}
    return replace(
        evidence,
        beats={name: beat for name, beat in evidence.beats.items() if name in names},
        restarts=heartbeat.recent(evidence.restarts, observed.now),
        applied={key: applied for key, applied in evidence.applied.items() if key in observed.live},
    )


def _again_s(observed: Observed, evidence: Evidence, again_s: float) -> float:
    interval = observed.spec.heartbeat.interval_seconds if observed.spec else 0
    pauses = [again_s, *([interval] if interval else []), *([_BUSY_S] if observed.retired else [])]
    missed = any(beat.misses for beat in evidence.routes.values())
    return min(*pauses, fronts.AGAIN_S if missed else again_s)


def _replacing(observed: Observed, weights: Weights, done: Chores) -> Chores:
    broken = heartbeat.to_replace(observed, weights)
    if broken is None:
        return done
    pod, beat = broken
    message = f"{pod.name} is replaced, and leaves the route first: {beat.message}"
    return replace(
        done,
        evidence=heartbeat.after_replacing(done.evidence, pod.name, observed.now),
        patch=(*done.patch, retirement.leaving(observed, pod.name)),
        events=(KubernetesEvent(reason="PodReplaced", message=message, warning=True),),
        again_s=_BUSY_S,
    )
