"""The front of a model: the name that clients use, and the objects that split their traffic.

There is one front Service per model, plus weighted routes (Gateway API v1) if there is a gateway.
"""

from shiplift.runtime.base.names import dns_name, serving_name
from shiplift.runtime.records.site import Cluster, GatewayRef
from shiplift.runtime.serving.kubernetes.objects.names import GRPC, HTTP, LABEL, Object
from shiplift.runtime.serving.kubernetes.objects.serving import ports


def hostnames(model: str, cluster: Cluster) -> list[str]:
    """The host names under which clients in the cluster reach a model."""
    name, namespace = dns_name(model), cluster.serving_namespace
    return [name, f"{name}.{namespace}", f"{name}.{namespace}.svc", f"{name}.{namespace}.svc.cluster.local"]


def _metadata(model: str, **annotations: str) -> Object:
    labels = {"app.kubernetes.io/managed-by": "shiplift", f"{LABEL}model": dns_name(model)}
    return {"name": dns_name(model), "labels": labels, "annotations": {f"{LABEL}model-name": model, **annotations}}


def front_switched(model: str, to: str, before: str) -> Object:
    """The front Service without a gateway: it selects one package's pods."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(model, **{f"{LABEL}serves": to, f"{LABEL}before": before}),
        "spec": {"selector": {f"{LABEL}package": to}, "ports": ports()},
    }


def front_of_gateway(model: str, address: str) -> list[Object]:
    """The front Service with a gateway: its name resolves to the gateway's address, a host name or an IP address."""
    if not address.replace(".", "").isdigit() and ":" not in address:
        return [
            {
                "apiVersion": "v1", "kind": "Service", "metadata": _metadata(model),
                "spec": {"type": "ExternalName", "externalName": address},
            }
        ]  # fmt: skip
    ports = [{"name": "http", "port": HTTP}, {"name": "grpc", "port": GRPC}]
    slice_meta = _metadata(model)
    slice_meta["labels"] = {**slice_meta["labels"], "kubernetes.io/service-name": dns_name(model)}
    return [
        {
            "apiVersion": "v1", "kind": "Service", "metadata": _metadata(model),
            "spec": {"clusterIP": "None", "ports": ports},
        },
        {
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": slice_meta,
            "addressType": "IPv6" if ":" in address else "IPv4", "endpoints": [{"addresses": [address]}],
            "ports": ports,
        },
    ]  # fmt: skip


def routes(model: str, cluster: Cluster, gateway: GatewayRef, weights: dict[str, int]) -> list[Object]:
    """The routes that split a model's traffic over its packages' Services: gRPC, and HTTP by host name and by path."""
    name = dns_name(model)

    def backends(port: int) -> list[Object]:
        return [{"name": package, "port": port, "weight": weight} for package, weight in weights.items()]

    def route(kind: str, section: str, rule: Object, *, suffix: str = "", hosts: list[str] | None = None) -> Object:
        parent = {"name": gateway.name, "namespace": gateway.namespace, "sectionName": section}
        return {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": kind,
            "metadata": {**_metadata(model), "name": name + suffix},
            "spec": {"parentRefs": [parent], **({"hostnames": hosts} if hosts else {}), "rules": [rule]},
        }

    path = {"path": {"type": "PathPrefix", "value": f"/v2/models/{serving_name(model)}"}}
    hosts = hostnames(model, cluster)
    return [
        route("GRPCRoute", "grpc", {"backendRefs": backends(GRPC)}, hosts=hosts),
        route("HTTPRoute", "http", {"backendRefs": backends(HTTP)}, hosts=hosts),
        route("HTTPRoute", "http", {"matches": [path], "backendRefs": backends(HTTP)}, suffix="-path"),
    ]
