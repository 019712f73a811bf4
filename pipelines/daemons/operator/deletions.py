"""Notes the deletion of a service by hand, and tells what it means."""

import structlog

from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.connection import Conflict, Object
from shiplift.runtime.serving.kubernetes.kinds import CONFIG_MAP, TRITON_SERVICE
from shiplift.runtime.serving.operator.cluster.acting import event_about
from shiplift.runtime.serving.operator.deletions import ORDERS, by_hand, event_of, order_of


class Deletions:
    """What an operator that leads does about services that are gone."""

    def __init__(self, api: KubernetesClient) -> None:
        self._api = api

    def note(self, body: Object) -> None:
        """Notes the order to retire a deleted service's model, if there is one, and records an Event."""
        if not by_hand(body):
            return
        name, order = body["metadata"]["name"], order_of(body)
        try:
            if order and self._api.get(TRITON_SERVICE, name) is None:
                self._write(name, order.model_dump_json())
            self._api.create(event_about(body, event_of(body, order)))
        except (ShipliftError, Conflict) as error:  # the service is declared again, as without an order
            structlog.get_logger().warning("failed", part="deletions", service=name, error=str(error))

    def _write(self, name: str, text: str) -> None:
        """Adds an order to the ConfigMap, and keeps the others."""
        if self._api.merge(CONFIG_MAP, ORDERS, {"data": {name: text}}) is None:
            labels = {"app.kubernetes.io/managed-by": "shiplift", "app.kubernetes.io/part-of": "shiplift"}
            metadata = {"name": ORDERS, "namespace": self._api.namespace, "labels": labels}
            self._api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {name: text}})
