"""The front of a model: the name that clients use, and the objects that split their traffic.

There is one front Service per model, plus weighted routes (Gateway API v1) if there is a gateway, or Ingresses without
weights if there is an Ingress class instead. With Envoy Gateway, a request that reached no server is sent again, and a
server that takes no connections gets no requests for a while; the Gateway API has no stable field for either.
"""

import math
from collections.abc import Collection, Mapping

from shiplift.runtime.base.names import TENSORS, dns_name, serving_name
from shiplift.runtime.records.shadowing import Mirror
from shiplift.runtime.records.site import Cluster, GatewayRef
from shiplift.runtime.serving.kubernetes.objects.activator import ACTIVATOR, groups_behind
from shiplift.runtime.serving.kubernetes.objects.deployment import ports
from shiplift.runtime.serving.kubernetes.objects.ingress import ingresses
from shiplift.runtime.serving.kubernetes.objects.names import (
    GRPC,
    HTTP,
    LABEL,
    PACKAGE,
    REVISION,
    Object,
    hosted_label,
)

MIRROR_PARTS = 1000  # the share of copied requests is known to a thousandth
TIMEOUT_S = 60.0  # of an HTTP request at the gateway: a server's own limit (30 s by default) comes first


def hostnames(model: str, cluster: Cluster) -> list[str]:
    """The host names under which clients in the cluster reach a model."""
    name, namespace = dns_name(model), cluster.serving_namespace
    return [name, f"{name}.{namespace}", f"{name}.{namespace}.svc", f"{name}.{namespace}.svc.cluster.local"]


def _metadata(model: str, **annotations: str) -> Object:
    labels = {"app.kubernetes.io/managed-by": "shiplift", f"{LABEL}model": dns_name(model)}
    return {"name": dns_name(model), "labels": labels, "annotations": {f"{LABEL}model-name": model, **annotations}}


def front_switched(model: str, to: str, before: str, *, selector: dict[str, str] | None = None) -> Object:
    """The front Service without a gateway: it selects one package's pods, or those of another `selector`."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(model, **{f"{LABEL}serves": to, f"{LABEL}before": before}),
        "spec": {"selector": selector or {PACKAGE: to}, "ports": ports()},
    }


def front_of_gateway(model: str, address: str) -> list[Object]:
    """The front Service with a gateway: its name resolves to the gateway's address, a host name or an IP address."""
    if not address.replace(".", "").isdigit() and ":" not in address:
        return [
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": _metadata(model),
                "spec": {"type": "ExternalName", "externalName": address},
            }
        ]
    ports = [{"name": "http", "port": HTTP}, {"name": "grpc", "port": GRPC}]
    slice_meta = _metadata(model)
    slice_meta["labels"] = {**slice_meta["labels"], "kubernetes.io/service-name": dns_name(model)}
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": _metadata(model),
            "spec": {"clusterIP": "None", "ports": ports},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": slice_meta,
            "addressType": "IPv6" if ":" in address else "IPv4",
            "endpoints": [{"addresses": [address]}],
            "ports": ports,
        },
    ]


def front_objects(
    model: str,
    cluster: Cluster,
    weights: dict[str, int],
    address: str,
    *,
    policies: bool,
    timeout_s: float = TIMEOUT_S,
    several: Collection[str] = (),
    hosts: Mapping[str, str] | None = None,
) -> list[Object]:
    """Every object of a model's front, with these traffic weights of its packages.

    `address` is the gateway's. `policies`: the cluster knows Envoy Gateway's `BackendTrafficPolicy`. Without a gateway
    both are unused: all traffic goes to the package that has a share, and one that has none is recorded as the previous
    one. `several` are the revisions that several packages serve: all of their pods get traffic then. `hosts` are the
    shared servers of the revisions that are on one.

    Raises:
        ValueError: there is no gateway, and the number of packages with a share is not one.
    """
    if cluster.gateway is None:
        (serves,) = [name for name, weight in weights.items() if weight]
        before = next((name for name, weight in weights.items() if not weight), "")
        outside = ingresses(model, cluster.ingress, _metadata(model), timeout_s=timeout_s) if cluster.ingress else []
        server = (hosts or {}).get(serves)
        selector = {hosted_label(serves): server} if server else {REVISION if serves in several else PACKAGE: serves}
        return [front_switched(model, serves, before, selector=selector), *outside]
    return [
        *routes(model, cluster, cluster.gateway, weights, timeout_s=timeout_s),
        *(traffic_policies(model) if policies else []),
        *front_of_gateway(model, address),
    ]


def routes(
    model: str, cluster: Cluster, gateway: GatewayRef, weights: dict[str, int], *, timeout_s: float = TIMEOUT_S
) -> list[Object]:
    """The routes that split a model's traffic over its packages' Services: gRPC, and HTTP by host name and by path.

    gRPC has no time-out at the gateway, because a stream may last as long as its client wants.
    """
    name = dns_name(model)
    timeouts = {"request": f"{math.ceil(timeout_s)}s"}

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

    def http(**matches: list[Object]) -> Object:
        return {**matches, "backendRefs": backends(HTTP), "timeouts": timeouts}

    prefix = f"/v2/models/{serving_name(model)}"
    paths: list[Object] = [{"path": {"type": "PathPrefix", "value": prefix + end}} for end in ("", TENSORS)]
    hosts = hostnames(model, cluster)
    return [
        route("GRPCRoute", "grpc", {"backendRefs": backends(GRPC)}, hosts=hosts),
        route("HTTPRoute", "http", http(), hosts=hosts),
        route("HTTPRoute", "http", http(matches=paths), suffix="-path"),
    ]


def copying(body: Object, mirror: Mirror) -> Object:
    """A route that also copies a share of its requests to another package, whose answers the gateway drops.

    Other objects stay as they are.
    """
    if body["kind"] not in ("GRPCRoute", "HTTPRoute"):
        return body
    backend = {"name": mirror.revision, "port": GRPC if body["kind"] == "GRPCRoute" else HTTP}
    fraction = {"numerator": max(1, round(mirror.share * MIRROR_PARTS)), "denominator": MIRROR_PARTS}
    copies = {"type": "RequestMirror", "requestMirror": {"backendRef": backend, "fraction": fraction}}
    rules = [{**rule, "filters": [copies]} for rule in body["spec"]["rules"]]
    return {**body, "spec": {**body["spec"], "rules": rules}}


def traffic_policies(model: str) -> list[Object]:
    """Envoy Gateway's policies for a model's routes. They are safe for any request, even one that changes a sequence.

    A request is sent again only if no server received it. A server that fails health checks, for example because its
    node lost power, gets no requests, unless nearly all servers fail them. Errors that a model returns eject no server:
    they say more about the request.
    """
    name = dns_name(model)
    ready = {"type": "HTTP", "http": {"path": f"/v2/models/{serving_name(model)}/ready", "expectedStatuses": [200]}}
    return [
        _policy(model, "", {"HTTPRoute": [name, f"{name}-path"]}, ready),
        _policy(model, "-grpc", {"GRPCRoute": [name]}, {"type": "GRPC", "grpc": {}}),
    ]


def _policy(model: str, suffix: str, routes: dict[str, list[str]], check: Object) -> Object:
    group = "gateway.networking.k8s.io"
    return {
        "apiVersion": "gateway.envoyproxy.io/v1alpha1",
        "kind": "BackendTrafficPolicy",
        "metadata": {**_metadata(model), "name": dns_name(model) + suffix},
        "spec": {
            "targetRefs": [
                {"group": group, "kind": kind, "name": name} for kind, names in routes.items() for name in names
            ],
            "timeout": {"tcp": {"connectTimeout": "2s"}},
            "retry": {
                "numRetries": 3,
                "retryOn": {"triggers": ["connect-failure", "refused-stream", "reset-before-request"]},
                "perRetry": {"backOff": {"baseInterval": "25ms", "maxInterval": "250ms"}},
            },
            "healthCheck": {
                "panicThreshold": 10,
                "active": {
                    # A frozen server leaves the route within 2 to 4 s.
                    **check,
                    "interval": "1s",
                    "timeout": "1s",
                    "unhealthyThreshold": 2,
                    "healthyThreshold": 1,
                },
                "passive": {
                    "splitExternalLocalOriginErrors": True,
                    "consecutiveLocalOriginFailures": 2,
                    "consecutiveGatewayErrors": 5,
                    "consecutive5XxErrors": 0,
                    "interval": "1s",
                    "baseEjectionTime": "5s",
                    "maxEjectionPercent": 50,
                },
            },
        },
    }


def weights_of(body: Object) -> dict[str, int]:
    """The traffic share of each package by name, in percent, in a front Service without a gateway, or in a route.

    A share that leads to the activator counts for the first package behind it.
    """
    if "rules" not in body.get("spec", {}):
        annotations = body.get("metadata", {}).get("annotations") or {}
        serves, before = annotations.get(f"{LABEL}serves", ""), annotations.get(f"{LABEL}before", "")
        return {**({before: 0} if before else {}), **({serves: 100} if serves else {})}
    rules = body["spec"]["rules"]
    return {_named(rule, backend): int(backend.get("weight", 1)) for rule in rules for backend in rule["backendRefs"]}


def _named(rule: Object, backend: Object) -> str:
    name = str(backend["name"])
    return next(iter(groups_behind(rule)), name) if name == ACTIVATOR else name
