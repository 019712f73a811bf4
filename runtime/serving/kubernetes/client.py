"""The one client of the Kubernetes API: objects go in and come out as dictionaries, as in YAML; errors are ours.

Applying is server-side under one field manager, so it is idempotent and leaves what others own alone.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from shiplift.runtime.serving.kubernetes.connection import (
    Answer,
    Method,
    Object,
    connect,
    read_lines,
    send,
    send_bytes,
    unknown,
)
from shiplift.runtime.serving.kubernetes.kinds import KNOWN, POD, Kind, group_path

MANAGER = "shiplift"


@dataclass(frozen=True)
class KubernetesClient:
    """One cluster; `namespace` is meant wherever neither the call nor the object names one.

    Every method raises `Temporary` where the API server fails, throttles or breaks off, `ClusterUnreachable` where
    there is no configuration or a kubeconfig leads to no API server, and `ClusterRefused` where the cluster forbids
    something, finds an object invalid, or does not know its kind or namespace.
    """

    namespace: str = ""
    connect: Callable[[], Any] = connect
    _discovered: dict[tuple[str, str], Kind] = field(default_factory=dict, repr=False, compare=False)

    # --- reading ---

    def get(self, kind: Kind, name: str, namespace: str = "") -> Object | None:
        """An object; None where there is none."""
        return self._send("GET", kind, name, namespace).or_none()

    def find(self, kind: Kind, selector: str = "", namespace: str = "") -> list[Object]:
        """Every object whose labels match."""
        return list(self.each(kind, selector, namespace, page=500))

    def each(self, kind: Kind, selector: str = "", namespace: str = "", *, page: int = 50) -> Iterator[Object]:
        """The same, one page at a time: where all of them would be much memory."""
        query = {"limit": str(page)} | ({"labelSelector": selector} if selector else {})
        while True:
            answer = self._send("GET", kind, "", namespace, query=query).checked()
            # A list does not repeat in its items what all of them are.
            yield from ({**item, "apiVersion": kind.version, "kind": kind.name} for item in answer.get("items", []))
            if not answer.get("metadata", {}).get("continue"):
                return
            query["continue"] = answer["metadata"]["continue"]

    # --- writing ---

    def create(self, body: Object) -> Object:
        """A new object.

        Raises:
            Conflict: there is one of that name.
        """
        kind, _, namespace = self.locate(body)
        return self._send("POST", kind, "", namespace, body=body).checked()

    def apply(self, body: Object, *, dry_run: bool = False) -> Object:
        """Makes an object what `body` says, whether or not it is there; with `dry_run` the cluster only checks it."""
        query = {"fieldManager": MANAGER, "force": "true"} | ({"dryRun": "All"} if dry_run else {})
        content = "application/apply-patch+yaml"
        return self._send("PATCH", *self.locate(body), body=body, query=query, content=content).checked()

    def replace(self, body: Object) -> Object:
        """Writes an object back, if nobody has written it since it was read.

        Raises:
            Conflict: somebody has.
        """
        return self._send("PUT", *self.locate(body), body=body).checked()

    def merge(self, kind: Kind, name: str, body: Object, namespace: str = "") -> Object | None:
        """Merges fields into an object (JSON merge patch, RFC 7396); None where there is none.

        Raises:
            Conflict: `body` names a `resourceVersion`, and the object has another by now.
        """
        return self._send("PATCH", kind, name, namespace, body=body, content="application/merge-patch+json").or_none()

    def delete(self, kind: Kind, name: str, namespace: str = "", *, uid: str = "") -> bool:
        """Deletes an object and, in the background, what it owns; gives whether there was one.

        Raises:
            Conflict: a `uid` is given, and the object of that name is another one.
        """
        body = {"propagationPolicy": "Background"} | ({"preconditions": {"uid": uid}} if uid else {})
        return self._send("DELETE", kind, name, namespace, body=body).or_none() is not None

    # --- what kinds there are ---

    def serves(self, kind: Kind) -> bool:
        """Whether the cluster knows a kind at all."""
        return self._discover(kind.version, kind.name) is not None

    def locate(self, body: Object) -> tuple[Kind, str, str]:
        """The kind, the name and the namespace of an object: what `get` and `delete` take."""
        version, name, meta = body["apiVersion"], body["kind"], body["metadata"]
        kind = KNOWN.get((version, name)) or self._discover(version, name)
        if kind is None:
            raise unknown(Kind(name=name, version=version, plural=""))
        return kind, meta.get("name", ""), meta.get("namespace", "")

    def _discover(self, version: str, name: str) -> Kind | None:
        """A kind as the cluster describes it; None where it has none of that name."""
        if (version, name) not in self._discovered:
            what = f"the kinds of {version}"
            answer = send(self._transport, "GET", group_path(version), what=what).or_none() or {}
            for item in answer.get("resources", []):
                if "/" not in item["name"]:  # else it is a part of an object, such as its status
                    self._discovered[version, item["kind"]] = Kind(
                        name=item["kind"], version=version, plural=item["name"], namespaced=item["namespaced"]
                    )
        return self._discovered.get((version, name))

    # --- what is neither an object nor JSON ---

    def log(self, pod: str, container: str, *, lines: int, follow: bool = False) -> Iterator[str]:
        """The last lines of a container's log; with `follow` also those to come, until it ends.

        Nothing where the pod is gone, or its container has not started.
        """
        path = f"{POD.path(self.namespace, pod)}/log"
        query = [("container", container), ("tailLines", str(lines)), *([("follow", "true")] if follow else [])]
        return read_lines(self._transport, path, what=f"the log of {pod}", query=query, endless=follow)

    def pass_on(
        self, method: str, path: str, *, query: list[tuple[str, str]], headers: dict[str, str], body: bytes | None
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        """A plain request to the API server; gives status, headers and body, whatever they are."""
        return send_bytes(self._transport, method, path, query=query, headers=headers, body=body)

    @cached_property
    def _transport(self) -> Any:
        return self.connect()

    def _send(self, method: Method, kind: Kind, name: str, namespace: str, **content: Any) -> Answer:
        namespace = (namespace or self.namespace) if kind.namespaced else ""
        where = f"{namespace}/" if namespace else ""
        what = f"{kind.name} {where}{name}" if name else f"{kind.plural} in {namespace or 'the cluster'}"
        return send(self._transport, method, kind.path(namespace, name), what=what, kind=kind, **content)


def name_of(body: Object) -> str:
    """How an object is called in messages: `Deployment shiplift/mlflow`."""
    meta = body["metadata"]
    where = f"{meta['namespace']}/" if meta.get("namespace") else ""
    return f"{body['kind']} {where}{meta['name']}"
