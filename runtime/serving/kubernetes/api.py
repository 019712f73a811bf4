"""The Kubernetes API, as the runtime needs it: get, find, apply, merge and delete, with errors translated to ours.

Objects are plain dictionaries, as in YAML. Applying is server-side (one field manager), so it is idempotent and leaves
what others own alone. Credentials come from the pod's service account or the user's kubeconfig.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from shiplift.runtime.base.errors import ClusterRefused, ClusterUnreachable, Temporary

Object = dict[str, Any]
Kind = Literal[
    "Deployment", "Service", "EndpointSlice", "PodDisruptionBudget", "HTTPRoute", "GRPCRoute", "Gateway", "Lease",
    "Pod", "Event", "Workflow", "WorkflowTemplate", "PodMetrics",
]  # fmt: skip
MANAGER = "shiplift"
_TIMEOUT_S = (5, 60)
_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
_PATHS: dict[Kind, tuple[str, str]] = {
    "Deployment": ("apis/apps/v1", "deployments"),
    "Service": ("api/v1", "services"),
    "EndpointSlice": ("apis/discovery.k8s.io/v1", "endpointslices"),
    "PodDisruptionBudget": ("apis/policy/v1", "poddisruptionbudgets"),
    "HTTPRoute": ("apis/gateway.networking.k8s.io/v1", "httproutes"),
    "GRPCRoute": ("apis/gateway.networking.k8s.io/v1", "grpcroutes"),
    "Gateway": ("apis/gateway.networking.k8s.io/v1", "gateways"),
    "Lease": ("apis/coordination.k8s.io/v1", "leases"),
    "Pod": ("api/v1", "pods"),
    "Event": ("api/v1", "events"),
    "Workflow": ("apis/argoproj.io/v1alpha1", "workflows"),
    "WorkflowTemplate": ("apis/argoproj.io/v1alpha1", "workflowtemplates"),
    "PodMetrics": ("apis/metrics.k8s.io/v1beta1", "pods"),
}


class Conflict(Exception):
    """Somebody else wrote the object first, or made one of that name."""


def connect() -> Any:
    """The Kubernetes client, with the pod's service account or the user's kubeconfig.

    Raises:
        ClusterUnreachable: there is no usable configuration.
    """
    from kubernetes import client, config  # noqa: PLC0415 - 1 s and 60 MB, paid only by who needs it

    settings = client.Configuration()
    try:
        if _TOKEN.is_file():
            config.load_incluster_config(client_configuration=settings)
        else:
            config.load_kube_config(client_configuration=settings)
    except config.ConfigException as error:
        raise ClusterUnreachable(
            f"there is no usable cluster configuration: {error}", do="Set KUBECONFIG, then try again."
        ) from error
    return client.ApiClient(settings)


@dataclass(frozen=True)
class Api:
    """One cluster, in one namespace.

    Every method raises `Temporary` where the API server fails or throttles, `ClusterRefused` where it forbids or finds
    an object invalid, and `ClusterUnreachable` where there is no usable configuration.
    """

    namespace: str

    @cached_property
    def _client(self) -> Any:
        return connect()

    def get(self, kind: Kind, name: str) -> Object | None:
        """An object; None where there is none."""
        return self._call("GET", self._path(kind, name), missing_is_none=True)

    def find(self, kind: Kind, selector: str = "") -> list[Object]:
        """Every object whose labels match."""
        found = self._call("GET", self._path(kind), query=[("labelSelector", selector)] if selector else [])
        return list((found or {}).get("items", []))

    def each(self, kind: Kind, selector: str = "", *, page: int = 50) -> Iterator[Object]:
        """The same, one page at a time: where all of them would be much memory."""
        asked = [("limit", str(page)), *([("labelSelector", selector)] if selector else [])]
        more: list[tuple[str, str]] = []
        while True:
            found = self._call("GET", self._path(kind), query=[*asked, *more]) or {}
            yield from found.get("items", [])
            if not found.get("metadata", {}).get("continue"):
                return
            more = [("continue", found["metadata"]["continue"])]

    def create(self, kind: Kind, body: Object) -> Object:
        """A new object.

        Raises:
            Conflict: there is one of that name.
        """
        return self._call("POST", self._path(kind), body=body) or {}

    def apply(self, body: Object) -> Object:
        """Makes an object what `body` says, whether or not it is there."""
        return self._call(
            "PATCH", self._path(body["kind"], body["metadata"]["name"]), body=body,
            query=[("fieldManager", MANAGER), ("force", "true")], content="application/apply-patch+yaml",
        ) or {}  # fmt: skip

    def replace(self, kind: Kind, body: Object) -> Object:
        """Writes an object back, if nobody has written it since it was read.

        Raises:
            Conflict: somebody has.
        """
        return self._call("PUT", self._path(kind, body["metadata"]["name"]), body=body) or {}

    def merge(self, kind: Kind, name: str, body: Object) -> Object | None:
        """Merges fields into an object (JSON merge patch, RFC 7396); None where there is none."""
        return self._call(
            "PATCH", self._path(kind, name), body=body, content="application/merge-patch+json", missing_is_none=True
        )

    def delete(self, kind: Kind, name: str) -> None:
        """Deletes an object and, in the background, what it owns; a missing one is no error."""
        body = {"propagationPolicy": "Background"}
        self._call("DELETE", self._path(kind, name), body=body, missing_is_none=True)

    def serves(self, kind: Kind) -> bool:
        """Whether the cluster knows a kind at all."""
        found = self._call("GET", f"/{_PATHS[kind][0]}", missing_is_none=True)
        return any(one["name"] == _PATHS[kind][1] for one in (found or {}).get("resources", []))

    def proxied(self, uri: str, path: str, query: dict[str, str]) -> Object | None:
        """What an HTTP service answers, asked through the API server where it is one of this namespace; None for 404.

        `uri` is the service's own, `http://NAME.NAMESPACE[.svc...]:PORT`, or any other address, then asked directly.
        """
        import httpx  # noqa: PLC0415 - only the command line asks

        parts = httpx.URL(uri)
        name, _, namespace = parts.host.partition(".")
        if namespace.split(".")[0] == self.namespace:
            at = f"/api/v1/namespaces/{self.namespace}/services/{name}:{parts.port or 80}/proxy{path}"
            return self._call("GET", at, query=list(query.items()), missing_is_none=True)
        try:
            answer = httpx.get(f"{uri.rstrip('/')}{path}", params=query, timeout=30)
        except httpx.HTTPError as error:
            raise Temporary(f"{parts.host} does not answer: {error}", do="Check it, then try again.") from error
        if answer.status_code == 404:
            return None
        return dict(answer.raise_for_status().json())

    def _path(self, kind: Kind, name: str = "") -> str:
        group, plural = _PATHS[kind]
        return f"/{group}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    def _call(
        self, method: str, path: str, *, body: Object | None = None, query: list[tuple[str, str]] | None = None,
        content: str = "application/json", missing_is_none: bool = False,
    ) -> Object | None:  # fmt: skip
        import urllib3  # noqa: PLC0415 - comes with kubernetes

        request = self._client.param_serialize(
            method, path, query_params=query or [], body=body, auth_settings=["BearerToken"],
            header_params={"Accept": "application/json", "Content-Type": content},
        )  # fmt: skip
        try:
            answer = self._client.call_api(*request, _request_timeout=_TIMEOUT_S)
            said = _json(answer.read())
        except urllib3.exceptions.HTTPError as error:
            raise Temporary(f"the cluster does not answer: {error}", do="Check it, then try again.") from error
        if answer.status == 404 and missing_is_none:
            return None
        if answer.status >= 400:
            raise _translated(answer.status, f"{method} {path}", str(said.get("message", "")))
        return dict(said)


def _json(text: bytes | None) -> Object:
    """An answer; whatever is not JSON (a plain 404, a proxy's page) as a status with that message."""
    try:
        said = json.loads(text or b"{}")
    except ValueError:
        said = (text or b"").decode(errors="replace")[:300]
    return said if isinstance(said, dict) else {"message": str(said)}


def _translated(status: int, what: str, message: str) -> Exception:
    said = " ".join(message.split())[:600]
    if status == 409:
        return Conflict(said)
    if status in (408, 429) or status >= 500:
        return Temporary(f"the cluster answered {status} to {what}: {said}", do="Try again in a moment.")
    if status in (401, 403):
        return ClusterRefused(f"the cluster forbids {what}: {said}", do="Grant the right; `shiplift install` does.")
    if status == 404:
        return ClusterRefused(f"the cluster has no {what}: {said}", do="Run `shiplift install` first.")
    return ClusterRefused(f"the cluster refused {what} ({status}): {said}", do="Mend the value it names.")
