"""Exposes a model through an Ingress, for clusters without the Gateway API.

An Ingress has no weights: it leads to the model's front Service, whose selector switches all traffic at once. For HTTP
all models share a host and differ in the path. All gRPC requests have the same path, so each model has its own host.
"""

import math

from shiplift.runtime.base.names import TENSORS, dns_name, serving_name
from shiplift.runtime.records.site import IngressRef
from shiplift.runtime.serving.kubernetes.objects.names import Object

_GRPC_PATH = "/inference.GRPCInferenceService"
_NGINX = (
    "nginx.ingress.kubernetes.io/"  # other controllers ignore these; they read `appProtocol` of the Service's ports
)


def grpc_host(model: str, ingress: IngressRef) -> str:
    """The host name of a model's gRPC requests."""
    return f"{dns_name(model)}.{ingress.host}"


def _path(path: str, service: str, port: str) -> Object:
    backend = {"service": {"name": service, "port": {"name": port}}}
    return {"path": path, "pathType": "Prefix", "backend": backend}


def ingresses(model: str, ingress: IngressRef, metadata: Object, *, timeout_s: float) -> list[Object]:
    """The Ingresses of a model's front Service, for HTTP and for gRPC; requests may take `timeout_s` seconds."""
    seconds = str(math.ceil(timeout_s))
    waits = {f"{_NGINX}proxy-read-timeout": seconds, f"{_NGINX}proxy-send-timeout": seconds}
    tensors = {**waits, f"{_NGINX}proxy-body-size": "0"}  # no limit: Triton has its own

    def of(suffix: str, host: str, paths: list[str], port: str, notes: dict[str, str]) -> Object:
        name = metadata["name"]
        tls = [{"hosts": [host], "secretName": ingress.tls_secret}] if ingress.tls_secret else []
        annotations = {**metadata["annotations"], **notes, **ingress.annotations}
        return {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "Ingress",
            "metadata": {**metadata, "name": f"{name}{suffix}", "annotations": annotations},
            "spec": {
                "ingressClassName": ingress.class_name,
                **({"tls": tls} if tls else {}),
                "rules": [{"host": host, "http": {"paths": [_path(path, name, port) for path in paths]}}],
            },
        }

    prefix = f"/v2/models/{serving_name(model)}"
    return [
        of("", ingress.host, [prefix, prefix + TENSORS], "http", tensors),
        of(".grpc", grpc_host(model, ingress), [_GRPC_PATH], "grpc", {**tensors, f"{_NGINX}backend-protocol": "GRPC"}),
    ]
