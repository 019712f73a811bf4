"""Removes Shiplift from a cluster: the objects of releases, those of the installation and, on request, its data."""

import time
from collections.abc import Mapping
from itertools import groupby

from shiplift.pipelines.installation.install import CREATED, cluster_wide, find, installed
from shiplift.pipelines.installation.manifests import INSTALLED
from shiplift.pipelines.installation.readiness import Tell
from shiplift.pipelines.installation.values import Values
from shiplift.runtime.base.errors import NotFound, ServerFailed
from shiplift.runtime.records.base import Record
from shiplift.runtime.serving.kubernetes import kinds
from shiplift.runtime.serving.kubernetes.client import KubernetesClient, name_of
from shiplift.runtime.serving.kubernetes.connection import Object
from shiplift.runtime.serving.operator import declared


class Removed(Record):
    """The objects that were removed from the cluster, and those that were kept."""

    objects: tuple[str, ...]
    kept: tuple[str, ...]


def summary(removed: Removed) -> str:
    """The last line of `shiplift uninstall`."""
    kept = f"; kept: {', '.join(removed.kept)} (`--data` removes them)" if removed.kept else ""
    return f"{len(removed.objects)} objects removed{kept}"


def served(values: Values) -> list[str]:
    """The models that serve, by name.

    Raises:
        ClusterUnreachable: no cluster answers.
    """
    services = declared.everything(KubernetesClient(values.serving_namespace))
    return sorted(model for model, version in declared.versions(services).items() if version)


def uninstall(values: Values, *, data: bool, timeout_s: float = 300, tell: Tell = lambda _: None) -> Removed:
    """Removes running releases, the models that serve, and everything that `install` created.

    MLflow's volume, and the Secrets that its content depends on, are kept unless `data` is true.

    Raises:
        NotFound: Shiplift is not installed in that namespace.
        ClusterUnreachable: no cluster answers.
        ServerFailed: an object was not deleted in time.
    """
    cluster = KubernetesClient()
    namespaces = [cluster.get(kinds.NAMESPACE, name) for name in (values.namespace, values.serving_namespace)]
    ours = [namespace for namespace in namespaces if namespace and INSTALLED in _labels(namespace)]
    if not ours:
        raise NotFound(
            f"Shiplift is not installed in the namespace {values.namespace!r} of this cluster",
            do="Pass the right --namespace, or point KUBECONFIG at the right cluster.",
        )
    deadline = time.monotonic() + timeout_s
    removed, kept = _split(cluster, values, ours, data=data)
    for kind, bodies in groupby(removed, key=lambda body: str(body["kind"])):
        same = list(bodies)
        for body in same:
            if cluster.delete(*cluster.locate(body)):
                tell(f"deleted: {name_of(body)}")
        for body in same if kind in ("Workflow", "Namespace") else ():  # all of a kind end at the same time
            _wait_gone(cluster, body, deadline)
    _wait_no_pods(cluster, values.namespace, deadline)
    return Removed(objects=tuple(map(name_of, removed)), kept=tuple(map(name_of, kept)))


# The kinds of objects that releases create in the serving namespace.
_SERVED = (
    kinds.TRITON_SERVICE,
    kinds.TRITON_REVISION,
    kinds.DEPLOYMENT,
    kinds.SERVICE,
    kinds.POD_DISRUPTION_BUDGET,
    kinds.HTTP_ROUTE,
    kinds.GRPC_ROUTE,
    kinds.INGRESS,
    kinds.TRAFFIC_POLICY,
    kinds.ENDPOINT_SLICE,
    kinds.CONFIG_MAP,
)


def _split(
    cluster: KubernetesClient, values: Values, namespaces: list[Object], *, data: bool
) -> tuple[list[Object], list[Object]]:
    """The objects to remove, in order, and the objects to keep."""
    removed = find(cluster, kinds.WORKFLOW, values.namespace)
    kept: list[Object] = []
    for namespace in namespaces:
        name = namespace["metadata"]["name"]
        whole = CREATED in (namespace["metadata"].get("annotations") or {}) and (name != values.namespace or data)
        if not whole:
            for kind in _SERVED:
                removed += find(cluster, kind, name, "app.kubernetes.io/managed-by=shiplift")
            removed += [lease for lease in cluster.find(kinds.LEASE, "", name) if _our_lease(lease)]
            removed += installed(cluster, name)
        stored = cluster.find(kinds.PERSISTENT_VOLUME_CLAIM, f"{INSTALLED}=true", name)
        stored += _opaque(cluster.find(kinds.SECRET, f"{INSTALLED}=true", name))
        kept += [] if data else stored
        removed += [] if whole or not data else stored
        removed += [namespace] if whole else []
        kept += [] if whole else [namespace]
    removed += cluster_wide(cluster, values.namespace)
    removed += _definitions(cluster, namespaces)
    volumes = cluster.find(kinds.PERSISTENT_VOLUME, f"{INSTALLED}=true")
    volumes = [volume for volume in volumes if volume["metadata"]["name"] == f"{values.namespace}-mlflow"]
    return [*_distinct(removed), *(volumes if data else [])], [*kept, *([] if data else volumes)]


def _definitions(cluster: KubernetesClient, namespaces: list[Object]) -> list[Object]:
    """The definitions of the custom resources, unless another installation uses them: all share them."""
    ours = {namespace["metadata"]["name"] for namespace in namespaces}
    others = [body for body in cluster.find(kinds.NAMESPACE, f"{INSTALLED}=true") if not _in(body, ours)]
    names = {namespace["metadata"]["name"] for namespace in cluster.find(kinds.NAMESPACE)} - ours
    for kind in (kinds.TRITON_SERVICE, kinds.TRITON_REVISION):
        others += [body for name in names for body in find(cluster, kind, name)]
    return [] if others else find(cluster, kinds.CUSTOM_RESOURCE, "", f"{INSTALLED}=true")


def _in(namespace: Object, names: set[str]) -> bool:
    return namespace["metadata"]["name"] in names


def _labels(body: Object) -> Mapping[str, str]:
    return body["metadata"].get("labels") or {}


def _opaque(secrets: list[Object]) -> list[Object]:
    """The Secrets, except tokens of service accounts, which are deleted with their account."""
    return [body for body in secrets if body.get("type") == "Opaque"]


def _our_lease(body: Object) -> bool:
    return str(body["metadata"]["name"]).startswith("shiplift-")


def _distinct(bodies: list[Object]) -> list[Object]:
    return list({name_of(body): body for body in bodies}.values())


def _wait_gone(cluster: KubernetesClient, body: Object, deadline: float) -> None:
    while cluster.get(*cluster.locate(body)) is not None:
        if time.monotonic() > deadline:
            raise ServerFailed(
                f"{name_of(body)} was not deleted in time",
                do="See what blocks it with `kubectl describe`, then try again.",
            )
        time.sleep(0.5)


def _wait_no_pods(cluster: KubernetesClient, namespace: str, deadline: float) -> None:
    for selector in ("app.kubernetes.io/part-of=shiplift", "workflows.argoproj.io/workflow"):
        while pods := cluster.find(kinds.POD, selector, namespace):
            if time.monotonic() > deadline:
                raise ServerFailed(
                    f"{name_of(pods[0])} was not deleted in time", do="See `kubectl describe`, then try again."
                )
            time.sleep(0.5)
