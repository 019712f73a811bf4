"""A pod that will be replaced leaves the route first, and is deleted once it gets no more requests.

It loses the label by which Services select it, so endpoints drop it and its Deployment starts another pod. It gets the
label `RETIRED`, whose value is the time: an operator that starts meanwhile can go on from there.

A pod whose server is shutting down leaves the route, too. The shutdown may take half a minute, and if its revision
comes back in the meantime, the revision's Service would lead to a server without models.
"""

from collections.abc import Iterator

from shiplift.runtime.serving.kubernetes.objects.names import LABEL, PACKAGE
from shiplift.runtime.serving.operator.evidence import Key, Patch
from shiplift.runtime.serving.operator.observed import Observed
from shiplift.runtime.serving.operator.resources import API_VERSION, SERVICE_KIND

RETIRED = f"{LABEL}retired"  # since when, in seconds since the epoch
_DRAIN_S = 5.0  # for proxies to follow the endpoints, on top of the pod's own drain at its end
_LONGEST_S = 60.0  # whatever the endpoints say


def leaving(observed: Observed, pod: str) -> Patch:
    """The merge patch that takes a pod off the route. It then belongs to the service, to be deleted with it."""
    owner = {"apiVersion": API_VERSION, "kind": SERVICE_KIND, "name": observed.name, "uid": observed.uid}
    labels = {PACKAGE: None, RETIRED: str(int(observed.now))}
    return ("Pod", pod), {"metadata": {"labels": labels, "ownerReferences": [owner]}}


def stopped(observed: Observed) -> Iterator[Patch]:
    """Takes pods off the route whose server is shutting down, if others take their place."""
    for pod, group in observed.stopping.items():
        if ("Deployment", group) in observed.live:
            yield leaving(observed, pod)


def to_delete(observed: Observed) -> Iterator[Key]:
    """The pods that have been off the route, and out of all endpoints, for long enough."""
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
