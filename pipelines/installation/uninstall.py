"""Taking Shiplift off a cluster again: what releases made, what the installation made, and last, if asked, its data."""

import time

from shiplift.pipelines.installation.install import CREATED, find, installed
from shiplift.pipelines.installation.manifests import INSTALLED
from shiplift.pipelines.installation.readiness import Tell
from shiplift.pipelines.installation.values import Values
from shiplift.runtime.base.errors import NotFound, ServerFailed
from shiplift.runtime.records.base import Record
from shiplift.runtime.serving.kubernetes import kinds
from shiplift.runtime.serving.kubernetes.client import KubernetesClient, name_of
from shiplift.runtime.serving.kubernetes.connection import Object


class Removed(Record):
    """What was taken off the cluster, and what was left there."""

    objects: tuple[str, ...]
    kept: tuple[str, ...]


def summary(gone: Removed) -> str:
    """What to tell a person at the end."""
    kept = f"; kept: {', '.join(gone.kept)} (`--data` removes them)" if gone.kept else ""
    return f"{len(gone.objects)} objects removed{kept}"


def uninstall(values: Values, *, data: bool, timeout_s: float = 300, tell: Tell = lambda _: None) -> Removed:
    """Removes it: releases under way, models that are served, and everything that `install` made.

    MLflow's volume, and the Secrets that belong to what is in it, stay unless `data` says that they go too.

    Raises:
        NotFound: Shiplift is not in that namespace.
        ClusterUnreachable: there is no cluster to talk to.
        ServerFailed: something has not gone in time.
    """
    cluster = KubernetesClient()
    spaces = [cluster.get(kinds.NAMESPACE, name) for name in (values.namespace, values.serving_namespace)]
    ours = [one for one in spaces if one and INSTALLED in (one["metadata"].get("labels") or {})]
    if not ours:
        raise NotFound(
            f"Shiplift is not in the namespace {values.namespace!r} of this cluster",
            do="Give the right --namespace, or point KUBECONFIG at the right cluster.",
        )
    deadline = time.monotonic() + timeout_s
    going, kept = _going(cluster, values, ours, data=data)
    for body in going:
        if cluster.delete(*cluster.locate(body)):
            tell(f"deleted: {name_of(body)}")
        if body["kind"] in ("Workflow", "Namespace"):
            _wait_gone(cluster, body, deadline)
    _wait_no_pods(cluster, values.namespace, deadline)
    return Removed(objects=tuple(map(name_of, going)), kept=tuple(map(name_of, kept)))


# What releases make in the serving namespace.
_SERVED = (
    kinds.DEPLOYMENT, kinds.SERVICE, kinds.POD_DISRUPTION_BUDGET, kinds.HTTP_ROUTE, kinds.GRPC_ROUTE,
    kinds.ENDPOINT_SLICE, kinds.CONFIG_MAP,
)  # fmt: skip


def _going(
    cluster: KubernetesClient, values: Values, spaces: list[Object], *, data: bool
) -> tuple[list[Object], list[Object]]:
    """What goes, in order, and what stays."""
    going = find(cluster, kinds.WORKFLOW, values.namespace)
    kept: list[Object] = []
    for space in spaces:
        name = space["metadata"]["name"]
        whole = CREATED in (space["metadata"].get("annotations") or {}) and (name != values.namespace or data)
        if not whole:
            for kind in _SERVED:
                going += find(cluster, kind, name, "app.kubernetes.io/managed-by=shiplift")
            going += [one for one in cluster.find(kinds.LEASE, "", name) if _our_lease(one)]
            going += installed(cluster, name)
        stored = cluster.find(kinds.PERSISTENT_VOLUME_CLAIM, f"{INSTALLED}=true", name)
        stored += _opaque(cluster.find(kinds.SECRET, f"{INSTALLED}=true", name))
        kept += [] if data else stored
        going += [] if whole or not data else stored
        going += [space] if whole else []
        kept += [] if whole else [space]
    volumes = cluster.find(kinds.PERSISTENT_VOLUME, f"{INSTALLED}=true")
    volumes = [one for one in volumes if one["metadata"]["name"] == f"{values.namespace}-mlflow"]
    return [*_distinct(going), *(volumes if data else [])], [*kept, *([] if data else volumes)]


def _opaque(found: list[Object]) -> list[Object]:
    """Without service accounts' tokens, which go with their account."""
    return [body for body in found if body.get("type") == "Opaque"]


def _our_lease(body: Object) -> bool:
    return str(body["metadata"]["name"]).startswith("shiplift-")


def _distinct(bodies: list[Object]) -> list[Object]:
    return list({name_of(body): body for body in bodies}.values())


def _wait_gone(cluster: KubernetesClient, body: Object, deadline: float) -> None:
    while cluster.get(*cluster.locate(body)) is not None:
        if time.monotonic() > deadline:
            raise ServerFailed(
                f"{name_of(body)} has not gone", do="See what holds it with `kubectl describe`, then try again."
            )
        time.sleep(0.5)


def _wait_no_pods(cluster: KubernetesClient, namespace: str, deadline: float) -> None:
    for selector in ("app.kubernetes.io/part-of=shiplift", "workflows.argoproj.io/workflow"):
        while pods := cluster.find(kinds.POD, selector, namespace):
            if time.monotonic() > deadline:
                raise ServerFailed(f"{name_of(pods[0])} has not gone", do="See `kubectl describe`, then try again.")
            time.sleep(0.5)
