"""Waits until an installation works; if it does not, says why."""

import time
from collections.abc import Callable, Iterable

from shiplift.runtime.base.errors import ServerFailed
from shiplift.runtime.serving.kubernetes import diagnosis
from shiplift.runtime.serving.kubernetes.client import KubernetesClient, name_of
from shiplift.runtime.serving.kubernetes.connection import Object
from shiplift.runtime.serving.kubernetes.kinds import POD

Tell = Callable[[str], None]
_POLL_S = 0.5
_CONDITIONS = {"CustomResourceDefinition": "Established", "Gateway": "Programmed"}
_MAX_LENGTH = 400  # characters of each reason


def wait(cluster: KubernetesClient, bodies: Iterable[Object], timeout_s: float, tell: Tell) -> None:
    """Returns when every definition, Deployment and Gateway of `bodies` is ready.

    Raises:
        ServerFailed: one is not ready in time; the message says which, and why its pods are not ready.
    """
    deadline = time.monotonic() + timeout_s
    for body in (body for body in bodies if body["kind"] in ("Deployment", *_CONDITIONS)):
        last = ""
        while (problem := _problem(cluster, body)) and time.monotonic() < deadline:
            if problem != last:
                tell(f"waiting for {name_of(body)}: {problem}")
                last = problem
            time.sleep(_POLL_S)
        if problem:
            raise ServerFailed(
                f"{name_of(body)} is not ready after {timeout_s:.0f} s: {problem}",
                do=f"See `kubectl {_where(body)}`, then run the same command again.",
            )


def _where(body: Object) -> str:
    """The arguments with which kubectl shows more about a problem."""
    namespace = body["metadata"].get("namespace")
    if namespace:
        return f"-n {namespace} describe pods"
    return f"describe {body['kind'].lower()} {body['metadata']['name']}"


def _problem(cluster: KubernetesClient, body: Object) -> str:
    """Why an object is not ready; empty if it is."""
    current = cluster.get(*cluster.locate(body))
    if current is None:
        return "it was deleted"
    status = current.get("status") or {}
    if body["kind"] in _CONDITIONS:
        conditions = {condition["type"]: condition for condition in status.get("conditions") or []}
        condition = conditions.get(_CONDITIONS[body["kind"]]) or {}
        ready = condition.get("status") == "True"
        return "" if ready else condition.get("message") or "no controller has accepted it"
    replicas = current["spec"].get("replicas", 1)
    ready_pods = min(status.get(key) or 0 for key in ("updatedReplicas", "availableReplicas"))
    observed = (status.get("observedGeneration") or 0) >= current["metadata"]["generation"]
    if observed and ready_pods >= replicas and (status.get("replicas") or 0) <= replicas:
        return ""
    return f"{ready_pods} of {replicas} pods ready{_reasons(cluster, current)}"


def _reasons(cluster: KubernetesClient, deployment: Object) -> str:
    """The known reasons why a Deployment's pods are not ready, the worst first."""
    meta = deployment["metadata"]
    pods = cluster.find(POD, f"app.kubernetes.io/name={meta['name']}", meta["namespace"])
    reasons = filter(None, [diagnosis.of_deployment(deployment), *map(diagnosis.of_pod, pods)])
    sentences = [reason.sentence[:_MAX_LENGTH] for reason in sorted(reasons, key=lambda reason: reason.prospect)]
    return f" ({'; '.join(dict.fromkeys(sentences))})" if sentences else ""
