"""A pod that is to be replaced leaves the route first, and is deleted once nobody sends it requests.

It loses the label by which Services know it, so endpoints drop it and its Deployment starts another. What is left of it
is a pod with the label `RETIRED`, whose value is when that happened: an operator that starts meanwhile goes on there.

So does a pod whose server was told to end. That may take half a minute, and its revision may be back by then: the new
pod's Service would lead to a server without models.
"""

from collections.abc import Iterator

from shiplift.runtime.serving.kubernetes.objects.names import LABEL, PACKAGE
from shiplift.runtime.serving.operator.evidence import Key, Patch
from shiplift.runtime.serving.operator.observed import Observed
from shiplift.runtime.serving.operator.resources import API_VERSION, SERVICE_KIND

RETIRED = f"{LABEL}retired"  # since when, in seconds since the epoch
_DRAIN_S = 5.0  # for proxies to follow the endpoints, besides the pod's own drain at its end
_LONGEST_S = 60.0  # whatever the endpoints say


def leaving(observed: Observed, pod: str) -> Patch:
    """The merge patch that takes a pod off the route. It then belongs to the service, to be deleted with it."""
    owner = {"apiVersion": API_VERSION, "kind": SERVICE_KIND, "name": observed.name, "uid": observed.uid}
    labels = {PACKAGE: None, RETIRED: str(int(observed.now))}
    return ("Pod", pod), {"metadata": {"labels": labels, "ownerReferences": [owner]}}


def stopped(observed: Observed) -> Iterator[Patch]:
    """Takes pods off the route whose server was told to end, where others take their place."""
    for pod, group in observed.stopping.items():
        if ("Deployment", group) in observed.live:
            yield leaving(observed, pod)


def to_delete(observed: Observed) -> Iterator[Key]:
    """The pods off the route that no endpoints have had for long enough."""
    routed = set(_routed(observed))
    for pod in observed.retired:
        gone_s = observed.now - pod.since
        if gone_s >= _LONGEST_S or (gone_s >= _DRAIN_S and pod.name not in routed):
            yield "Pod", pod.name


def _routed(observed: Observed) -> Iterator[str]:
    """The names of the pods in endpoints."""
    for (kind, _), body in observed.live.items():
        for endpoint in (body.get("endpoints") or []) if kind == "EndpointSlice" else ():
            yield str((endpoint.get("targetRef") or {}).get("name", ""))
