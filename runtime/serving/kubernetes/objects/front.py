"""The front of a model: the name that clients use, and what shares their traffic out.

One front Service per model, with routes by weight (Gateway API v1) where there is a gateway.
"""

from shiplift.runtime.base.names import dns_name, serving_name
from shiplift.runtime.records.site import Cluster, GatewayRef
from shiplift.runtime.serving.kubernetes.objects.names import GRPC, HTTP, LABEL, Object
from shiplift.runtime.serving.kubernetes.objects.serving import ports


def hostnames(model: str, cluster: Cluster) -> list[str]:
    """The names under which clients in the cluster reach a model."""
    name, namespace = dns_name(model), cluster.serving_namespace
    return [name, f"{name}.{namespace}", f"{name}.{namespace}.svc", f"{name}.{namespace}.svc.cluster.local"]


def _front(model: str, **more: str) -> Object:
    marks = {"app.kubernetes.io/managed-by": "shiplift", f"{LABEL}model": dns_name(model)}
    return {"name": dns_name(model), "labels": marks, "annotations": {f"{LABEL}model-name": model, **more}}


def front_switched(model: str, to: str, before: str) -> Object:
    """Without a gateway: the front Service selects one package's pods."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _front(model, **{f"{LABEL}serves": to, f"{LABEL}before": before}),
        "spec": {"selector": {f"{LABEL}package": to}, "ports": ports()},
    }


def front_of_gateway(model: str, address: str) -> list[Object]:
    """With a gateway: the front Service's name resolves to the gateway's address, a host name or an IP."""
    if not address.replace(".", "").isdigit() and ":" not in address:
        return [
            {
                "apiVersion": "v1", "kind": "Service", "metadata": _front(model),
                "spec": {"type": "ExternalName", "externalName": address},
            }
        ]  # fmt: skip
    ports = [{"name": "http", "port": HTTP}, {"name": "grpc", "port": GRPC}]
    slice_meta = _front(model)
    slice_meta["labels"] = {**slice_meta["labels"], "kubernetes.io/service-name": dns_name(model)}
    return [
        {
            "apiVersion": "v1", "kind": "Service", "metadata": _front(model),
            "spec": {"clusterIP": "None", "ports": ports},
        },
        {
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": slice_meta,
            "addressType": "IPv6" if ":" in address else "IPv4", "endpoints": [{"addresses": [address]}],
            "ports": ports,
        },
    ]  # fmt: skip


def routes(model: str, cluster: Cluster, gateway: GatewayRef, weights: dict[str, int]) -> list[Object]:
    """The traffic of a model, shared out over packages' Services by weight: HTTP by host name and by path, gRPC."""
    name = dns_name(model)

    def backends(port: int) -> list[Object]:
        return [{"name": to, "port": port, "weight": weight} for to, weight in weights.items()]

    def route(kind: str, section: str, rule: Object, *, suffix: str = "", hosts: list[str] | None = None) -> Object:
        parent = {"name": gateway.name, "namespace": gateway.namespace, "sectionName": section}
        return {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": kind,
            "metadata": {**_front(model), "name": name + suffix},
            "spec": {"parentRefs": [parent], **({"hostnames": hosts} if hosts else {}), "rules": [rule]},
        }

    path = {"path": {"type": "PathPrefix", "value": f"/v2/models/{serving_name(model)}"}}
    hosts = hostnames(model, cluster)
    return [
        route("GRPCRoute", "grpc", {"backendRefs": backends(GRPC)}, hosts=hosts),
        route("HTTPRoute", "http", {"backendRefs": backends(HTTP)}, hosts=hosts),
        route("HTTPRoute", "http", {"matches": [path], "backendRefs": backends(HTTP)}, suffix="-path"),
    ]
