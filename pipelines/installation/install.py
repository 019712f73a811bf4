"""Installs Shiplift on a cluster, or upgrades it, and waits until it works. Running it again is harmless."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Literal

from shiplift.pipelines.installation import accounts
from shiplift.pipelines.installation.manifests import (
    INSTALLATION,
    INSTALLED,
    PARTS,
    copied_secrets,
    documents,
    labelled,
    part_of,
    secret_keys,
)
from shiplift.pipelines.installation.readiness import Tell, wait
from shiplift.pipelines.installation.values import Values
from shiplift.runtime.base.errors import ClusterRefused, Temporary
from shiplift.runtime.records.base import Record
from shiplift.runtime.serving.kubernetes import kinds
from shiplift.runtime.serving.kubernetes.client import KubernetesClient, name_of
from shiplift.runtime.serving.kubernetes.connection import Conflict, Object, unknown
from shiplift.runtime.serving.kubernetes.kinds import ResourceKind
from shiplift.runtime.serving.kubernetes.objects.names import LABEL
from shiplift.runtime.serving.service_proxy import transport_to
from shiplift.runtime.store.registry.lease import RegistryLease
from shiplift.runtime.store.registry.rest import RestRegistry

CREATED = f"{LABEL}created-by-install"
DEFINITION = f"{LABEL}definition"  # the number of a custom resource's definition, which several installations share
Change = Literal["created", "configured", "unchanged", "kept"]


class ObjectChange(Record):
    """What happened to an object. `kept` means that a newer installation defined the custom resource."""

    object: str
    change: Literal["created", "configured", "unchanged", "kept", "deleted"]


class Installed(Record):
    """What an installation did, and the addresses of its parts inside the cluster."""

    namespace: str
    serving_namespace: str
    dry_run: bool
    objects: tuple[ObjectChange, ...]
    mlflow: str
    receiver: str

    @property
    def changed(self) -> tuple[ObjectChange, ...]:
        """The objects that changed."""
        return tuple(applied for applied in self.objects if applied.change not in ("unchanged", "kept"))


def install(
    values: Values,
    *,
    dry_run: bool = False,
    timeout_s: float = 300,
    tell: Tell = lambda _: None,
    take_over: bool = False,
) -> Installed:
    """Installs Shiplift on the current cluster, or upgrades it, and waits until it is ready.

    With `dry_run` the cluster validates every object, but changes nothing.

    Raises:
        RegistryHeld: another installation releases from the registry; `take_over` takes the lease from it.
        ClusterUnreachable: no cluster answers.
        ClusterRefused: the cluster forbids or rejects an object, or Argo Workflows is missing.
        ServerFailed: a part did not become ready in time; the message says which, and why its pods are not ready.
    """
    cluster = KubernetesClient()
    values = completed(cluster, values)
    _require(cluster, values)
    _hold_registry(values, take_over=take_over and not dry_run)
    applied: list[ObjectChange] = []
    for part in PARTS:
        for body in part_of(values, part):
            applied.append(_apply(cluster, body, dry_run=dry_run))
            _tell_change(tell, applied[-1], dry_run=dry_run)
        if part == "namespaces":
            for secret in _ensure_secrets(cluster, values, dry_run=dry_run):
                applied.append(secret)
                _tell_change(tell, secret, dry_run=dry_run)
    for body in _obsolete(cluster, values):
        if not dry_run:
            cluster.delete(*cluster.locate(body))
        applied.append(ObjectChange(object=name_of(body), change="deleted"))
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


def summary(installed: Installed) -> str:
    """The last lines of `shiplift install`."""
    changed = len(installed.changed)
    same = f"{len(installed.objects) - changed} unchanged"
    if installed.dry_run:
        return f"{changed} objects would change, {same}; this dry run changed nothing"
    port_forward = f"kubectl -n {installed.namespace} port-forward service/mlflow 5000"
    return "\n".join(
        [
            f"{changed} objects changed, {same}; everything is ready",
            f"MLflow:   {installed.mlflow} (from outside: {port_forward})",
            "accounts: MLflow requires a password. To create a person's account, or to give it a new password:",
            f"          kubectl -n {installed.namespace} exec deploy/mlflow -- python -m {accounts.__name__} add NAME",
            (
                f"webhooks: {installed.receiver}/webhooks/github and /gitlab; their secrets are in Secret "
                "shiplift-webhooks"
            ),
        ]
    )


def completed(cluster: KubernetesClient, values: Values) -> Values:
    """The values, completed with the API server's addresses, which network policies need and only the cluster knows."""
    if values.network.api_server or not values.network.policies:
        return values
    slices = cluster.find(kinds.ENDPOINT_SLICE, "kubernetes.io/service-name=kubernetes", "default")
    endpoints = (endpoint for body in slices for endpoint in body.get("endpoints") or [])
    addresses = {address for endpoint in endpoints for address in endpoint["addresses"]}
    service = cluster.get(kinds.SERVICE, "kubernetes", "default")
    addresses |= set((service or {}).get("spec", {}).get("clusterIPs") or [])
    networks = tuple(sorted(f"{address}/{128 if ':' in address else 32}" for address in addresses))
    return values.model_copy(update={"network": values.network.model_copy(update={"api_server": networks})})


def _require(cluster: KubernetesClient, values: Values) -> None:
    gateway_kinds = (kinds.GATEWAY, kinds.HTTP_ROUTE, kinds.GRPC_ROUTE) if values.gateway else ()
    admission_kinds = (kinds.ADMISSION_POLICY, kinds.ADMISSION_POLICY_BINDING) if values.admission.policies else ()
    for kind in (kinds.WORKFLOW_TEMPLATE, *gateway_kinds, *admission_kinds):
        if not cluster.serves(kind):
            raise unknown(kind)


def _hold_registry(values: Values, *, take_over: bool) -> None:
    """Checks that no other installation holds the registry's lease, or takes it over.

    If the registry can't be reached from here, or does not exist yet, the reconciler checks later.
    """
    uri = values.registry_uri
    transport = transport_to(KubernetesClient(values.namespace), uri)
    lease = RegistryLease(RestRegistry(uri, transport=transport), values.holder, f"namespace {values.namespace}")
    with suppress(Temporary, ClusterRefused):
        if take_over:
            lease.take_over()
        else:
            lease.check()


def _apply(cluster: KubernetesClient, body: Object, *, dry_run: bool) -> ObjectChange:
    namespace = body["metadata"].get("namespace")
    if dry_run and namespace and cluster.get(kinds.NAMESPACE, namespace) is None:
        return ObjectChange(
            object=name_of(body), change="created"
        )  # the cluster validates nothing in a missing namespace
    if body["kind"] == "Namespace":
        body = _marked(cluster, body)
    before = cluster.get(*cluster.locate(body))
    if before and _definition(before) > _definition(body):
        return ObjectChange(object=name_of(body), change="kept")
    after = cluster.apply(body, dry_run=dry_run)
    change: Change = "unchanged" if before and _comparable(before) == _comparable(after) else "configured"
    return ObjectChange(object=name_of(body), change=change if before else "created")


def _definition(body: Object) -> int:
    """The number of a custom resource's definition; 0 for other objects, and if it is not a number."""
    number = str((body["metadata"].get("annotations") or {}).get(DEFINITION, ""))
    return int(number) if number.isdecimal() else 0


def _comparable(body: Object) -> Object:
    """An object without the fields that change by themselves. (A dry run does not increase `resourceVersion`.)"""
    meta = {k: v for k, v in body["metadata"].items() if k not in ("managedFields", "resourceVersion", "generation")}
    return {**body, "metadata": meta, "status": None}


def _marked(cluster: KubernetesClient, body: Object) -> Object:
    """A namespace, marked if `install` created it: `uninstall` removes only a marked namespace."""
    existing = cluster.get(kinds.NAMESPACE, body["metadata"]["name"])
    ours = existing is None or CREATED in (existing["metadata"].get("annotations") or {})
    marks = {"annotations": {CREATED: "true"}} if ours else {}
    return {**body, "metadata": {**body["metadata"], **marks}}


def _tell_change(tell: Tell, applied: ObjectChange, *, dry_run: bool) -> None:
    if applied.change == "kept":
        tell(f"kept: {applied.object}, which a newer Shiplift installed")
    elif applied.change != "unchanged":
        tell(f"{'would be ' if dry_run else ''}{applied.change}: {applied.object}")


# Objects of these kinds are deleted when changed values no longer include them. Kinds that hold data are not listed.
_KINDS: tuple[ResourceKind, ...] = (
    kinds.DEPLOYMENT,
    kinds.SERVICE,
    kinds.CONFIG_MAP,
    kinds.POD_DISRUPTION_BUDGET,
    kinds.NETWORK_POLICY,
    kinds.RESOURCE_QUOTA,
    kinds.GATEWAY,
    kinds.ROLE,
    kinds.ROLE_BINDING,
    kinds.SERVICE_ACCOUNT,
    kinds.WORKFLOW_TEMPLATE,
)


def _obsolete(cluster: KubernetesClient, values: Values) -> Iterator[Object]:
    names = {name_of(body) for body in documents(values)}
    for namespace in (values.namespace, values.serving_namespace):
        for body in installed(cluster, namespace):
            if name_of(body) not in names:
                yield body
    for body in cluster_wide(cluster, values.namespace):
        if name_of(body) not in names:
            yield body


def installed(cluster: KubernetesClient, namespace: str) -> Iterator[Object]:
    """The objects that `install` created in a namespace, except those that hold data."""
    for kind in _KINDS:
        yield from find(cluster, kind, namespace, f"{INSTALLED}=true")


def cluster_wide(cluster: KubernetesClient, namespace: str) -> Iterator[Object]:
    """An installation's objects outside of namespaces: bindings first, because they refer to the others."""
    bindings = (kinds.ADMISSION_POLICY_BINDING, kinds.CLUSTER_ROLE_BINDING)
    for kind in (*bindings, kinds.ADMISSION_POLICY, kinds.CLUSTER_ROLE):
        yield from find(cluster, kind, "", f"{INSTALLED}=true,{INSTALLATION}={namespace}")


def find(cluster: KubernetesClient, kind: ResourceKind, namespace: str, selector: str = "") -> list[Object]:
    """Every object whose labels match; empty if the cluster doesn't have the kind."""
    return cluster.find(kind, selector, namespace) if cluster.serves(kind) else []


def _ensure_secrets(cluster: KubernetesClient, values: Values, *, dry_run: bool) -> Iterator[ObjectChange]:
    """Creates missing Secrets and keys. Existing ones are never changed."""
    for name, keys in secret_keys(values).items():
        existing = cluster.get(kinds.SECRET, name, values.namespace)
        missing = {key: make for key, make in keys.items() if key not in ((existing or {}).get("data") or {})}
        body = _secret(name, values.namespace, {"stringData": {key: make() for key, make in missing.items()}})
        if missing and not dry_run:
            _write_secret(cluster, body, existing)
        yield ObjectChange(object=name_of(body), change=_change(existing, changed=bool(missing)))
    for name in copied_secrets(values):
        yield _copy_secret(cluster, values, name, dry_run=dry_run)


def _copy_secret(cluster: KubernetesClient, values: Values, name: str, *, dry_run: bool) -> ObjectChange:
    """Copies a Secret from the pipeline's namespace to the serving namespace."""
    original = cluster.get(kinds.SECRET, name, values.namespace) or {}  # a dry run has not created it
    existing = cluster.get(kinds.SECRET, name, values.serving_namespace)
    body = _secret(name, values.serving_namespace, {"data": original.get("data") or {}})
    changed = existing is None or existing.get("data") != body["data"]
    if changed and not dry_run:
        _write_secret(cluster, body, existing)
    return ObjectChange(object=name_of(body), change=_change(existing, changed=changed))


def _secret(name: str, namespace: str, content: Object) -> Object:
    return labelled(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace}, **content}
    )


def _change(existing: Object | None, *, changed: bool) -> Change:
    if not changed:
        return "unchanged"
    return "created" if existing is None else "configured"


def _write_secret(cluster: KubernetesClient, body: Object, existing: Object | None) -> None:
    if existing is not None:
        cluster.merge(kinds.SECRET, body["metadata"]["name"], body, body["metadata"]["namespace"])
        return
    with suppress(Conflict):  # another client created it in the meantime: leave it alone
        cluster.create(body)
