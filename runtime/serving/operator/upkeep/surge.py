"""Adds a pod when the only one is about to go, so that its replacement is ready first.

The only pod is about to go if its node is cordoned, as for maintenance: its disruption budget forbids evicting it until
there is another. It should also go if it no longer answers, but a late answer is better than none.
"""

from shiplift.runtime.serving.kubernetes.objects.names import Object
from shiplift.runtime.serving.operator.evidence import Beat
from shiplift.runtime.serving.operator.observed import Observed
from shiplift.runtime.serving.operator.upkeep.heartbeat import LIMIT


def extra_replicas(observed: Observed, group: str, replicas: int) -> int:
    """How many pods a group needs for now on top of its usual number: 0 or 1."""
    pods = observed.pods.get(group, ()) if not observed.host(group) else ()
    beats = observed.evidence.beats
    going = any(pod.cordoned or beats.get(pod.name, Beat()).misses >= LIMIT for pod in pods)
    return 1 if replicas == 1 and going else 0


def is_surge(observed: Observed, body: Object) -> bool:
    """Whether a Deployment changes because of this, and not to undo a change from outside."""
    name = body["metadata"]["name"]
    live = observed.live.get((body["kind"], name))
    if body["kind"] != "Deployment" or live is None:
        return False
    return {body["spec"].get("replicas"), live["spec"].get("replicas")} == {1, 2}
