"""Decides which pods get a golden request now, and which one to replace because it failed to answer."""

from collections.abc import Iterator
from dataclasses import replace

from shiplift.runtime.serving.operator.evidence import Beat, Evidence, Weights
from shiplift.runtime.serving.operator.measurements import AskPods
from shiplift.runtime.serving.operator.observed import Observed, PodSeen

LIMIT = 3  # heartbeats in a row
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 20.0, 600.0
_FORGOTTEN_S = 1800.0  # after so long, a restart no longer makes the pause longer


def due(observed: Observed, weights: Weights) -> tuple[AskPods, ...]:
    """The golden requests to send now: one to each pod with traffic that is ready, or was ready and still runs.

    A frozen server loses its readiness, but its container restarts only after the longest possible execution.
    """
    interval = observed.spec.heartbeat.interval_seconds if observed.spec else 0
    if not interval or observed.activation or observed.now - observed.evidence.beaten_at < interval:
        return ()  # a service that goes to sleep is left alone, so that its counters can stand still
    asks = []
    for revision, percent in sorted(weights.items()):
        for group in observed.groups(revision) if percent else ():
            pods = tuple(
                (pod.name, pod.address) for pod in observed.pods.get(group.name, ()) if _is_asked(observed, pod)
            )
            if pods:
                asks.append(AskPods(revision=revision, group=group.name, pods=pods))
    return tuple(asks)


def to_replace(observed: Observed, weights: Weights) -> tuple[PodSeen, Beat] | None:
    """The pod to delete: at most one at a time, with growing pauses.

    The last ready pod stays, unless it answers wrongly: a late answer is better than none.
    """
    restarts = observed.evidence.restarts
    pause = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** len(restarts))
    if restarts and observed.now - restarts[-1] < pause:
        return None
    candidates = [(pod, beat) for pod, beat, alone in _failing(observed, weights) if beat.wrong or not alone]
    return min(candidates, key=lambda candidate: (not candidate[1].wrong, candidate[0].name), default=None)


def after_replacing(evidence: Evidence, pod: str, now: float) -> Evidence:
    """The evidence after a pod was deleted."""
    beats = {name: beat for name, beat in evidence.beats.items() if name != pod}
    return replace(evidence, beats=beats, restarts=(*recent(evidence.restarts, now), now))


def recent(restarts: tuple[float, ...], now: float) -> tuple[float, ...]:
    """The restarts that still count."""
    return tuple(at for at in restarts if now - at < _FORGOTTEN_S)


def _failing(observed: Observed, weights: Weights) -> Iterator[tuple[PodSeen, Beat, bool]]:
    """The pods with traffic that missed too many heartbeats, each with whether no other pod of its revision is ready.

    Pods of shared servers are not among them: there, the model leaves instead.
    """
    for revision, percent in weights.items():
        pods = observed.pods_of(revision) if percent and not observed.host(revision) else ()
        for pod in pods:
            beat = observed.evidence.beats.get(pod.name, Beat())
            if beat.misses >= LIMIT and _is_asked(observed, pod):
                yield pod, beat, not any(other.ready for other in pods if other != pod)


def _is_asked(observed: Observed, pod: PodSeen) -> bool:
    was_ready = pod.runs and pod.name in observed.evidence.beats
    return bool(pod.address) and (pod.ready or was_ready)
