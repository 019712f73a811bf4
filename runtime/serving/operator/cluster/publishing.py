"""Publishes what serves, for clients that look models up: one ConfigMap, written only when it changes."""

from collections.abc import Iterator
from contextlib import suppress

from pydantic import ValidationError

from shiplift.runtime.base.names import bracketed, dns_name
from shiplift.runtime.records.deployment import Endpoint
from shiplift.runtime.records.site import Cluster
from shiplift.runtime.serving.discovery import CONFIG_MAP_NAME, PublishedModel, inside_of
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.connection import Object
from shiplift.runtime.serving.kubernetes.kinds import CONFIG_MAP, GATEWAY
from shiplift.runtime.serving.kubernetes.objects.ingress import grpc_host
from shiplift.runtime.serving.kubernetes.objects.names import GRPC, HTTP
from shiplift.runtime.serving.operator.cluster.observing import Snapshot
from shiplift.runtime.serving.operator.declared import of_object


class Publisher:
    """Keeps the ConfigMap of one namespace."""

    def __init__(self, api: KubernetesClient, cluster: Cluster) -> None:
        self._api, self._cluster = api, cluster

    def publish(self, snapshot: Snapshot) -> bool:
        """Brings the ConfigMap up to date with a look at all services; returns whether it had to be written."""
        data = {dns_name(entry.model): _written(entry) for entry in self._entries(snapshot)}
        live = (self._api.get(CONFIG_MAP, CONFIG_MAP_NAME) or {}).get("data")
        if live == data or (not live and not data):
            return False
        self._api.apply(self._config_map(data))
        if foreign := {key: None for key in live or {} if key not in data}:
            self._api.merge(CONFIG_MAP, CONFIG_MAP_NAME, {"data": foreign})
        return True

    def _entries(self, snapshot: Snapshot) -> Iterator[PublishedModel]:
        gateway, namespace = self._gateway(snapshot.address), self._cluster.serving_namespace
        ingress = self._cluster.ingress
        for _, body in sorted(snapshot.services.items()):
            with suppress(ValidationError):  # the spec is invalid: the service's status says so
                service = of_object(body)
                seen = snapshot.revisions.get(service.status.revision)
                if seen and seen.package:
                    model = service.spec.model
                    yield PublishedModel(
                        model=model,
                        revision=service.status.revision,
                        version=service.version,
                        inside=inside_of(model, namespace),
                        outside=gateway or self._ingress(model),
                        host=f"{dns_name(model)}.{namespace}" if gateway else "",
                        secure=bool(ingress and ingress.tls_secret),
                        signature=seen.package.signature,
                        scoring=seen.package.scoring,
                        targets=tuple(group.target for group in service.status.groups),
                    )

    def _gateway(self, address: str) -> Endpoint | None:
        """The gateway's address with the ports of its listeners."""
        gateway = self._cluster.gateway
        if gateway is None or not address:
            return None
        body = self._api.get(GATEWAY, gateway.name, gateway.namespace) or {}
        listeners = {each["name"]: each["port"] for each in (body.get("spec") or {}).get("listeners", [])}
        name = bracketed(address)
        return Endpoint(
            http=f"http://{name}:{listeners.get('http', HTTP)}", grpc=f"{name}:{listeners.get('grpc', GRPC)}"
        )

    def _ingress(self, model: str) -> Endpoint | None:
        """A model's addresses at the Ingress."""
        ingress = self._cluster.ingress
        if ingress is None:
            return None
        scheme, port = ("https", 443) if ingress.tls_secret else ("http", 80)
        return Endpoint(http=f"{scheme}://{ingress.host}", grpc=f"{grpc_host(model, ingress)}:{port}")

    def _config_map(self, data: dict[str, str]) -> Object:
        labels = {"app.kubernetes.io/managed-by": "shiplift", "app.kubernetes.io/part-of": "shiplift"}
        metadata = {"name": CONFIG_MAP_NAME, "namespace": self._api.namespace, "labels": labels}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def _written(entry: PublishedModel) -> str:
    """An entry as JSON, without empty `targets`, so that a model with a single target keeps its former entry."""
    return entry.model_dump_json(exclude=set() if entry.targets else {"targets"})
