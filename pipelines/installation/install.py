"""Putting Shiplift on a cluster: applied, idempotent, and waited for until it works."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Literal

from shiplift.pipelines.installation.manifests import INSTALLED, PARTS, documents, labelled, part_of, secret_keys
from shiplift.pipelines.installation.readiness import Tell, wait
from shiplift.pipelines.installation.values import Values
from shiplift.runtime.records.base import Record
from shiplift.runtime.serving.kubernetes import kinds
from shiplift.runtime.serving.kubernetes.client import KubernetesClient, name_of
from shiplift.runtime.serving.kubernetes.connection import Conflict, Object, unknown
from shiplift.runtime.serving.kubernetes.kinds import Kind
from shiplift.runtime.serving.kubernetes.objects.names import LABEL

CREATED = f"{LABEL}created-by-install"
Change = Literal["created", "configured", "unchanged"]


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
    cluster = KubernetesClient()
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
            cluster.delete(*cluster.locate(body))
        applied.append(Applied(object=name_of(body), change="deleted"))
        _tell_change(tell, applied[-1], dry_run=dry_run)
    if not dry_run:
        wait(cluster, documents(values), timeout_s, tell)
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


def completed(cluster: KubernetesClient, values: Values) -> Values:
    """The values with what only the cluster knows: the addresses of its API server."""
    if values.network.api_server or not values.network.policies:
        return values
    slices = cluster.find(kinds.ENDPOINT_SLICE, "kubernetes.io/service-name=kubernetes", "default")
    addresses = {one for body in slices for end in body.get("endpoints") or [] for one in end["addresses"]}
    service = cluster.get(kinds.SERVICE, "kubernetes", "default")
    addresses |= set((service or {}).get("spec", {}).get("clusterIPs") or [])
    networks = tuple(sorted(f"{one}/{128 if ':' in one else 32}" for one in addresses))
    return values.model_copy(update={"network": values.network.model_copy(update={"api_server": networks})})


def _require(cluster: KubernetesClient, values: Values) -> None:
    of_gateway = (kinds.GATEWAY, kinds.HTTP_ROUTE, kinds.GRPC_ROUTE) if values.gateway else ()
    for kind in (kinds.WORKFLOW_TEMPLATE, *of_gateway):
        if not cluster.serves(kind):
            raise unknown(kind)


def _apply(cluster: KubernetesClient, body: Object, *, dry_run: bool) -> Applied:
    namespace = body["metadata"].get("namespace")
    if dry_run and namespace and cluster.get(kinds.NAMESPACE, namespace) is None:
        return Applied(object=name_of(body), change="created")  # nothing can be checked in a namespace that isn't there
    if body["kind"] == "Namespace":
        body = _owned(cluster, body)
    before = cluster.get(*cluster.locate(body))
    after = cluster.apply(body, dry_run=dry_run)
    change: Change = "unchanged" if before and _settled(before) == _settled(after) else "configured"
    return Applied(object=name_of(body), change=change if before else "created")


def _settled(body: Object) -> Object:
    """An object without what changes by itself. (A dry run bumps nothing, so its version says nothing.)"""
    meta = {k: v for k, v in body["metadata"].items() if k not in ("managedFields", "resourceVersion", "generation")}
    return {**body, "metadata": meta, "status": None}


def _owned(cluster: KubernetesClient, body: Object) -> Object:
    """A namespace with the mark that `install` made it, if it did: only such a one is removed at the end."""
    there = cluster.get(kinds.NAMESPACE, body["metadata"]["name"])
    ours = there is None or CREATED in (there["metadata"].get("annotations") or {})
    marks = {"annotations": {CREATED: "true"}} if ours else {}
    return {**body, "metadata": {**body["metadata"], **marks}}


def _tell_change(tell: Tell, one: Applied, *, dry_run: bool) -> None:
    if one.change != "unchanged":
        tell(f"{'would be ' if dry_run else ''}{one.change}: {one.object}")


# Kinds of which an object may become unwanted when values change; what holds data is not among them.
_KINDS: tuple[Kind, ...] = (
    kinds.DEPLOYMENT, kinds.SERVICE, kinds.CONFIG_MAP, kinds.POD_DISRUPTION_BUDGET, kinds.NETWORK_POLICY,
    kinds.RESOURCE_QUOTA, kinds.GATEWAY, kinds.ROLE, kinds.ROLE_BINDING, kinds.SERVICE_ACCOUNT, kinds.WORKFLOW_TEMPLATE,
)  # fmt: skip


def _unwanted(cluster: KubernetesClient, values: Values) -> Iterator[Object]:
    wanted = {name_of(body) for body in documents(values)}
    for namespace in (values.namespace, values.serving_namespace):
        for body in installed(cluster, namespace):
            if name_of(body) not in wanted:
                yield body


def installed(cluster: KubernetesClient, namespace: str) -> Iterator[Object]:
    """What an installation made in a namespace, but what holds data."""
    for kind in _KINDS:
        yield from find(cluster, kind, namespace, f"{INSTALLED}=true")


def find(cluster: KubernetesClient, kind: Kind, namespace: str, selector: str = "") -> list[Object]:
    """Every object whose labels match; none where the cluster doesn't know the kind."""
    return cluster.find(kind, selector, namespace) if cluster.serves(kind) else []


def _keep_secrets(cluster: KubernetesClient, values: Values, *, dry_run: bool) -> Iterator[Applied]:
    """Makes what is missing; what is there stays, whoever made it."""
    for name, keys in secret_keys(values).items():
        there = cluster.get(kinds.SECRET, name, values.namespace)
        missing = {key: make for key, make in keys.items() if key not in ((there or {}).get("data") or {})}
        body = labelled({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": values.namespace},
            "stringData": {key: make() for key, make in missing.items()},
        })  # fmt: skip
        if missing and not dry_run:
            _write_secret(cluster, body, there)
        change: Change = "unchanged"
        if missing:
            change = "created" if there is None else "configured"
        yield Applied(object=name_of(body), change=change)


def _write_secret(cluster: KubernetesClient, body: Object, there: Object | None) -> None:
    if there is not None:
        cluster.merge(kinds.SECRET, body["metadata"]["name"], body, body["metadata"]["namespace"])
        return
    with suppress(Conflict):  # somebody made it meanwhile: it stays as it is
        cluster.create(body)
