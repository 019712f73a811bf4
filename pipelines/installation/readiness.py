"""Waiting until what was installed works, and saying why it does not."""

import time
from collections.abc import Callable, Iterable

from shiplift.runtime.base.errors import ServerFailed
from shiplift.runtime.serving.kubernetes import diagnosis
from shiplift.runtime.serving.kubernetes.client import KubernetesClient, name_of
from shiplift.runtime.serving.kubernetes.connection import Object
from shiplift.runtime.serving.kubernetes.kinds import POD

Tell = Callable[[str], None]
_POLL_S = 0.5
_MOST = 400  # characters of each reason


def wait(cluster: KubernetesClient, bodies: Iterable[Object], timeout_s: float, tell: Tell) -> None:
    """Returns when every Deployment and Gateway of `bodies` is ready.

    Raises:
        ServerFailed: one is not in time; the message says which, and what its pods say.
    """
    deadline = time.monotonic() + timeout_s
    for body in (body for body in bodies if body["kind"] in ("Deployment", "Gateway")):
        last = ""
        while (lacks := _lacks(cluster, body)) and time.monotonic() < deadline:
            if lacks != last:
                tell(f"waiting for {name_of(body)}: {lacks}")
                last = lacks
            time.sleep(_POLL_S)
        if lacks:
            raise ServerFailed(
                f"{name_of(body)} is not ready after {timeout_s:.0f} s: {lacks}",
                do=f"See `kubectl -n {body['metadata']['namespace']} describe pods`, then run the same command again.",
            )


def _lacks(cluster: KubernetesClient, body: Object) -> str:
    """What an object still lacks to be ready; empty: it is."""
    there = cluster.get(*cluster.locate(body))
    if there is None:
        return "it is gone"
    status = there.get("status") or {}
    if body["kind"] == "Gateway":
        conditions = {condition["type"]: condition for condition in status.get("conditions") or []}
        programmed = conditions.get("Programmed") or {}
        return "" if programmed.get("status") == "True" else programmed.get("message") or "nobody has taken it up"
    wanted = there["spec"].get("replicas", 1)
    ready = min(status.get(key) or 0 for key in ("updatedReplicas", "availableReplicas"))
    seen = (status.get("observedGeneration") or 0) >= there["metadata"]["generation"]
    if seen and ready >= wanted and (status.get("replicas") or 0) <= wanted:
        return ""
    return f"{ready} of {wanted} pods ready{_reasons(cluster, there)}"


def _reasons(cluster: KubernetesClient, deployment: Object) -> str:
    """Why its pods are not ready, as far as they say, the worst first."""
    meta = deployment["metadata"]
    pods = cluster.find(POD, f"app.kubernetes.io/name={meta['name']}", meta["namespace"])
    found = filter(None, [diagnosis.of_deployment(deployment), *map(diagnosis.of_pod, pods)])
    sentences = [reason.sentence[:_MOST] for reason in sorted(found, key=lambda reason: reason.prospect)]
    return f" ({'; '.join(dict.fromkeys(sentences))})" if sentences else ""
