"""Putting Shiplift on a cluster: applied, idempotent, and waited for until it works."""

import time
from collections.abc import Callable, Iterator
from typing import Literal

from shiplift.pipelines.installation.manifests import INSTALLED, PARTS, documents, labelled, part_of, secret_keys
from shiplift.pipelines.installation.values import Values
from shiplift.runtime.base.errors import ClusterRefused, ServerFailed
from shiplift.runtime.records.base import Record
from shiplift.runtime.serving.kubernetes.api import Object
from shiplift.runtime.serving.kubernetes.manifests import Manifests, name_of
from shiplift.runtime.serving.kubernetes.objects import LABEL

CREATED = f"{LABEL}created-by-install"
Tell = Callable[[str], None]


class Applied(Record):
    """What became of one object."""

    object: str
    change: Literal["created", "configured", "unchanged", "deleted"]


class Installed(Record):
    """What an installation did, and where it is reached from inside the cluster."""

    namespace: str
    serving_namespace: str
    dry_run: bool
    objects: tuple[Applied, ...]
    mlflow: str
    receiver: str

    @property
    def changed(self) -> tuple[Applied, ...]:
        """What is not as it was."""
        return tuple(one for one in self.objects if one.change != "unchanged")


def install(values: Values, *, dry_run: bool = False, timeout_s: float = 300, tell: Tell = lambda _: None) -> Installed:
    """Puts it on the current cluster, or brings it up to date, and waits until it is ready.

    With `dry_run` the cluster checks every object, and nothing is changed.

    Raises:
        ClusterUnreachable: there is no cluster to talk to.
        ClusterRefused: it forbids an object, finds one invalid, or lacks Argo Workflows.
        ServerFailed: a part did not become ready in time; the message says which, and what its pods say.
    """
    cluster = Manifests()
    values = completed(cluster, values)
    _require(cluster, values)
    applied: list[Applied] = []
    for part in PARTS:
        for body in part_of(values, part):
            applied.append(_apply(cluster, body, dry_run=dry_run))
            _tell_change(tell, applied[-1], dry_run=dry_run)
        if part == "namespaces":
            for one in _keep_secrets(cluster, values, dry_run=dry_run):
                applied.append(one)
                _tell_change(tell, one, dry_run=dry_run)
    for body in _unwanted(cluster, values):
        if not dry_run:
            cluster.delete(body)
        applied.append(Applied(object=name_of(body), change="deleted"))
        _tell_change(tell, applied[-1], dry_run=dry_run)
    if not dry_run:
        _wait(cluster, values, timeout_s, tell)
    return Installed(
        namespace=values.namespace,
        serving_namespace=values.serving_namespace,
        dry_run=dry_run,
        objects=tuple(applied),
        mlflow=values.registry_uri,
        receiver=f"http://receiver.{values.namespace}.svc",
    )


def summary(done: Installed) -> str:
    """What to tell a person at the end."""
    changed = len(done.changed)
    same = f"{len(done.objects) - changed} unchanged"
    if done.dry_run:
        return f"{changed} objects would change, {same}; nothing was done"
    return "\n".join([
        f"{changed} objects changed, {same}; everything is ready",
        f"MLflow:   {done.mlflow} (from outside: kubectl -n {done.namespace} port-forward service/mlflow 5000)",
        f"webhooks: {done.receiver}/webhooks/github and /gitlab; their secrets are in Secret shiplift-webhooks",
    ])  # fmt: skip


def completed(cluster: Manifests, values: Values) -> Values:
    """The values with what only the cluster knows: the addresses of its API server."""
    if values.network.api_server or not values.network.policies:
        return values
    slices = cluster.find("discovery.k8s.io/v1", "EndpointSlice", "default", "kubernetes.io/service-name=kubernetes")
    addresses = {one for body in slices for end in body.get("endpoints") or [] for one in end["addresses"]}
    service = cluster.get("v1", "Service", "kubernetes", "default")
    addresses |= set((service or {}).get("spec", {}).get("clusterIPs") or [])
    networks = tuple(sorted(f"{one}/{128 if ':' in one else 32}" for one in addresses))
    return values.model_copy(update={"network": values.network.model_copy(update={"api_server": networks})})


def _require(cluster: Manifests, values: Values) -> None:
    kinds = [("argoproj.io/v1alpha1", "WorkflowTemplate")]
    kinds += [
        ("gateway.networking.k8s.io/v1", kind) for kind in ("Gateway", "HTTPRoute", "GRPCRoute") if values.gateway
    ]
    for version, kind in kinds:
        if not cluster.serves(version, kind):
            raise ClusterRefused(
                f"the cluster does not know the kind {kind} ({version})",
                do="Install Argo Workflows 4.0 or newer; for `gateway` the Gateway API and an implementation of it.",
            )


def _apply(cluster: Manifests, body: Object, *, dry_run: bool) -> Applied:
    namespace = body["metadata"].get("namespace")
    if dry_run and namespace and cluster.get("v1", "Namespace", namespace) is None:
        return Applied(object=name_of(body), change="created")  # nothing can be checked in a namespace that isn't there
    if body["kind"] == "Namespace":
        body = _owned(cluster, body)
    return Applied(object=name_of(body), change=cluster.apply(body, dry_run=dry_run))


def _owned(cluster: Manifests, body: Object) -> Object:
    """A namespace with the mark that `install` made it, if it did: only such a one is removed at the end."""
    there = cluster.get("v1", "Namespace", body["metadata"]["name"])
    ours = there is None or CREATED in (there["metadata"].get("annotations") or {})
    marks = {"annotations": {CREATED: "true"}} if ours else {}
    return {**body, "metadata": {**body["metadata"], **marks}}


def _tell_change(tell: Tell, one: Applied, *, dry_run: bool) -> None:
    if one.change != "unchanged":
        tell(f"{'would be ' if dry_run else ''}{one.change}: {one.object}")


# Kinds of which an object may become unwanted when values change; what holds data is not among them.
_KINDS = (
    ("apps/v1", "Deployment"), ("v1", "Service"), ("v1", "ConfigMap"), ("policy/v1", "PodDisruptionBudget"),
    ("networking.k8s.io/v1", "NetworkPolicy"), ("v1", "ResourceQuota"), ("gateway.networking.k8s.io/v1", "Gateway"),
    ("rbac.authorization.k8s.io/v1", "Role"), ("rbac.authorization.k8s.io/v1", "RoleBinding"),
    ("v1", "ServiceAccount"), ("argoproj.io/v1alpha1", "WorkflowTemplate"),
)  # fmt: skip


def _unwanted(cluster: Manifests, values: Values) -> Iterator[Object]:
    wanted = {name_of(body) for body in documents(values)}
    for namespace in (values.namespace, values.serving_namespace):
        for body in installed(cluster, namespace):
            if name_of(body) not in wanted:
                yield body


def installed(cluster: Manifests, namespace: str) -> Iterator[Object]:
    """What an installation made in a namespace, but what holds data."""
    for version, kind in _KINDS:
        yield from cluster.find(version, kind, namespace, f"{INSTALLED}=true")


def _keep_secrets(cluster: Manifests, values: Values, *, dry_run: bool) -> Iterator[Applied]:
    """Makes what is missing; what is there stays, whoever made it."""
    for name, keys in secret_keys(values).items():
        there = cluster.get("v1", "Secret", name, values.namespace)
        missing = {key: make for key, make in keys.items() if key not in ((there or {}).get("data") or {})}
        body = labelled({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": values.namespace},
            "stringData": {key: make() for key, make in missing.items()},
        })  # fmt: skip
        if missing and not dry_run:
            cluster.create(body) if there is None else cluster.merge(body)
        change: Literal["created", "configured", "unchanged"] = "unchanged"
        if missing:
            change = "created" if there is None else "configured"
        yield Applied(object=name_of(body), change=change)


# --- until it is ready ----------------------------------------------------------------------------------------------


def _wait(cluster: Manifests, values: Values, timeout_s: float, tell: Tell) -> None:
    deadline = time.monotonic() + timeout_s
    waited = [body for body in documents(values) if body["kind"] in ("Deployment", "Gateway")]
    for body in waited:
        last = ""
        while (lacks := _lacks(cluster, body)) and time.monotonic() < deadline:
            if lacks != last:
                tell(f"waiting for {name_of(body)}: {lacks}")
                last = lacks
            time.sleep(0.5)
        if lacks:
            raise ServerFailed(
                f"{name_of(body)} is not ready after {timeout_s:.0f} s: {lacks}",
                do=f"See `kubectl -n {body['metadata']['namespace']} describe pods`, then run the same command again.",
            )


def _lacks(cluster: Manifests, body: Object) -> str:
    """What an object still lacks to be ready; empty: it is."""
    meta = body["metadata"]
    there = cluster.get(body["apiVersion"], body["kind"], meta["name"], meta["namespace"])
    if there is None:
        return "it is gone"
    status = there.get("status") or {}
    if body["kind"] == "Gateway":
        said = {one["type"]: one for one in status.get("conditions") or []}
        programmed = said.get("Programmed") or {}
        return "" if programmed.get("status") == "True" else programmed.get("message") or "nobody has taken it up"
    wanted = there["spec"].get("replicas", 1)
    ready = min(status.get(key) or 0 for key in ("updatedReplicas", "availableReplicas"))
    seen = (status.get("observedGeneration") or 0) >= there["metadata"]["generation"]
    if seen and ready >= wanted and (status.get("replicas") or 0) <= wanted:
        return ""
    return f"{ready} of {wanted} pods ready{_reasons(cluster, meta['namespace'], meta['name'])}"


def _reasons(cluster: Manifests, namespace: str, name: str) -> str:
    """Why its pods are not ready, as far as they say."""
    found = []
    for pod in cluster.find("v1", "Pod", namespace, f"app.kubernetes.io/name={name}"):
        status = pod.get("status") or {}
        for one in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
            waiting = (one.get("state") or {}).get("waiting") or {}
            ended = (one.get("lastState") or {}).get("terminated") or {}
            found += [f"{waiting.get('reason')} {ended.get('message') or waiting.get('message') or ''}"] * bool(waiting)
        conditions = status.get("conditions") or []
        found += [one.get("message", "") for one in conditions if one.get("reason") == "Unschedulable"]
    said = "; ".join(dict.fromkeys(" ".join(one.split())[-300:] for one in found))
    return f" ({said})" if said else ""
