"""The only client of the Kubernetes API: objects are dictionaries with the structure of their YAML; errors are ours.

Commands, stages, daemons and the operator's watches all use it. Objects are applied server-side under one field
manager, so applying is idempotent and leaves others' fields alone.

It is a thin layer over urllib3, because every library that was measured does less and takes more memory:

| | import | 1,000 pods | watches | typing |
|---|---|---|---|---|
| urllib3 2.8 and this layer | 0.2 s, 15 MB | 0.1 s, 27 MB | go on by version and bookmark | objects are JSON |
| lightkube 1.0 | 0.4 s, 24 MB | 0.2 s, 39 MB | go on by version, no bookmarks | built-in kinds typed |
| kr8s 0.20 | 0.6 s, 35 MB | 2.7 s, 181 MB | no bookmarks, asks for expired versions again | objects untyped |
| kubernetes 37 (official) | 0.6 s, 36 MB | 1.4 s, 125 MB | go on by version | built-in kinds typed |
| kopf 1.45 | 0.8 s, 34 MB | | complete, but it does nothing else | objects untyped |

None of them retries requests as the API server asks, translates errors, or passes plain requests to Services; lightkube
deletes without preconditions. The operator used kopf for its watches before: that took 47 of its 131 MB.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from shiplift.runtime.base.errors import ClusterRefused, Temporary
from shiplift.runtime.serving.kubernetes.connection import (
    ApiResponse,
    Method,
    Object,
    send,
    send_bytes,
    unknown,
)
from shiplift.runtime.serving.kubernetes.kinds import KNOWN, POD, SELF_SUBJECT_REVIEW, ResourceKind, group_path
from shiplift.runtime.serving.kubernetes.streams import event_of, read_lines
from shiplift.runtime.serving.kubernetes.transport import SILENT_S, Transport, connect

MANAGER = "shiplift"
_GRACE_S = 30.0  # for the API server to end a watch whose time is up


@dataclass(frozen=True)
class KubernetesClient:
    """A client of one cluster; `namespace` is the default if neither the call nor the object names one.

    Every method raises `Temporary` if the API server fails, throttles or drops the connection, `ClusterUnreachable` if
    there is no configuration or a kubeconfig leads to no API server, and `ClusterRefused` if the cluster forbids
    something, finds an object invalid, or does not know its kind or namespace.
    """

    namespace: str = ""
    connect: Callable[[], Transport] = connect
    _discovered: dict[tuple[str, str], ResourceKind] = field(default_factory=dict, repr=False, compare=False)

    # --- reading ---

    def get(self, kind: ResourceKind, name: str, namespace: str = "") -> Object | None:
        """An object; None if it does not exist."""
        return self._send("GET", kind, name, namespace).or_none()

    def find(self, kind: ResourceKind, selector: str = "", namespace: str = "") -> list[Object]:
        """Every object whose labels match."""
        return list(self.each(kind, selector, namespace, page=500))

    def each(
        self, kind: ResourceKind, selector: str = "", namespace: str = "", *, page: int = 50, fields: str = ""
    ) -> Iterator[Object]:
        """Like `find`, but one page at a time, because all objects at once may take much memory.

        `fields` is a field selector, such as `spec.unschedulable=true`.
        """
        selectors = {"labelSelector": selector, "fieldSelector": fields}
        query = {"limit": str(page)} | {name: value for name, value in selectors.items() if value}
        while True:
            answer = self._send("GET", kind, "", namespace, query=query).checked()
            # The items of a list lack the apiVersion and kind that they share.
            yield from ({**item, "apiVersion": kind.version, "kind": kind.name} for item in answer.get("items", []))
            if not answer.get("metadata", {}).get("continue"):
                return
            query["continue"] = answer["metadata"]["continue"]

    def watch(self, kind: ResourceKind, namespace: str = "", *, since: str = "", seconds: int) -> Iterator[Object]:
        """Watches the objects of a kind for so many seconds; gives the API server's events.

        It begins after the resource version `since`; without one, with an `ADDED` for each object that exists. A
        `BOOKMARK` carries a new resource version and nothing else: it keeps `since` recent while nothing happens, so
        that the next watch does not start from a version that the API server has forgotten. The watch has begun when
        this returns.

        Raises:
            Temporary: among other reasons, events after `since` are no longer known, or it was silent for too long.
        """
        namespace = namespace or self.namespace
        # Both ends have a time-out. The API server ends the watch after `seconds`; if it does not, the connection is
        # dead, although no error says so.
        query = [("watch", "true"), ("allowWatchBookmarks", "true"), ("timeoutSeconds", str(seconds))]
        query += [("resourceVersion", since)] if since else []
        what, silent_s = f"{kind.plural} in {namespace}", seconds + _GRACE_S
        path = kind.path(namespace if kind.namespaced else "")
        lines = read_lines(self._transport, path, what=what, query=query, silent_s=silent_s, kind=kind)
        return (event_of(line, what, kind) for line in lines)

    # --- writing ---

    def create(self, body: Object) -> Object:
        """Creates an object.

        Raises:
            Conflict: an object of that name exists.
        """
        kind, _, namespace = self.locate(body)
        return self._send("POST", kind, "", namespace, body=body).checked()

    def apply(self, body: Object, *, dry_run: bool = False, manager: str = MANAGER) -> Object:
        """Creates or changes an object to match `body`; with `dry_run` the cluster only validates it."""
        query = {"fieldManager": manager, "force": "true"} | ({"dryRun": "All"} if dry_run else {})
        content = "application/apply-patch+yaml"
        return self._send("PATCH", *self.locate(body), body=body, query=query, content=content).checked()

    def replace(self, body: Object) -> Object:
        """Writes an object back, unless it has changed since it was read.

        Raises:
            Conflict: it has changed.
        """
        return self._send("PUT", *self.locate(body), body=body).checked()

    def merge(self, kind: ResourceKind, name: str, body: Object, namespace: str = "") -> Object | None:
        """Merges fields into an object (JSON merge patch, RFC 7396); None if it does not exist.

        Raises:
            Conflict: `body` names a `resourceVersion` that the object no longer has.
        """
        return self._send("PATCH", kind, name, namespace, body=body, content="application/merge-patch+json").or_none()

    def delete(self, kind: ResourceKind, name: str, namespace: str = "", *, uid: str = "") -> bool:
        """Deletes an object and, in the background, what it owns; returns whether it existed.

        Raises:
            Conflict: the object of that name has a different `uid`.
        """
        body = {"propagationPolicy": "Background"} | ({"preconditions": {"uid": uid}} if uid else {})
        return self._send("DELETE", kind, name, namespace, body=body).or_none() is not None

    # --- the user ---

    def user(self) -> str:
        """The name under which the cluster knows this client; empty if it does not say."""
        kind = SELF_SUBJECT_REVIEW
        body = {"apiVersion": kind.version, "kind": kind.name, "metadata": {}}
        try:
            answer = self._send("POST", kind, "", "", body=body).or_none() or {}
        except (ClusterRefused, Temporary):  # a cluster older than 1.28
            return ""
        return str(((answer.get("status") or {}).get("userInfo") or {}).get("username", ""))

    # --- kinds ---

    def serves(self, kind: ResourceKind) -> bool:
        """Whether the cluster knows a kind."""
        return self._discover(kind.version, kind.name) is not None

    def locate(self, body: Object) -> tuple[ResourceKind, str, str]:
        """The kind, name and namespace of an object: the arguments of `get` and `delete`."""
        version, name, meta = body["apiVersion"], body["kind"], body["metadata"]
        kind = KNOWN.get((version, name)) or self._discover(version, name)
        if kind is None:
            raise unknown(ResourceKind(name=name, version=version, plural=""))
        return kind, meta.get("name", ""), meta.get("namespace", "")

    def _discover(self, version: str, name: str) -> ResourceKind | None:
        """A kind as the cluster describes it; None if the cluster does not know it."""
        if (version, name) not in self._discovered:
            what = f"the kinds of {version}"
            answer = send(self._transport, "GET", group_path(version), what=what).or_none() or {}
            for item in answer.get("resources", []):
                if "/" not in item["name"]:  # otherwise it is a subresource, such as an object's status
                    self._discovered[version, item["kind"]] = ResourceKind(
                        name=item["kind"], version=version, plural=item["name"], namespaced=item["namespaced"]
                    )
        return self._discovered.get((version, name))

    # --- requests for anything but JSON objects ---

    def log(self, pod: str, container: str, *, lines: int, follow: bool = False) -> Iterator[str]:
        """The last lines of a container's log, and with `follow` new ones until it ends.

        Empty if the pod is gone, or its container has not started.
        """
        path = f"{POD.path(self.namespace, pod)}/log"
        query = [("container", container), ("tailLines", str(lines)), *([("follow", "true")] if follow else [])]
        what, silent_s = f"the log of {pod}", None if follow else SILENT_S
        return read_lines(self._transport, path, what=what, query=query, silent_s=silent_s, absent=(400, 404))

    def forward(
        self, method: str, path: str, *, query: list[tuple[str, str]], headers: dict[str, str], body: bytes | None
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        """Sends a plain HTTP request to the API server; returns status, headers and body, even of an error."""
        return send_bytes(self._transport, method, path, query=query, headers=headers, body=body)

    @cached_property
    def _transport(self) -> Transport:
        return self.connect()

    def _send(self, method: Method, kind: ResourceKind, name: str, namespace: str, **content: Any) -> ApiResponse:
        namespace = (namespace or self.namespace) if kind.namespaced else ""
        where = f"{namespace}/" if namespace else ""
        what = f"{kind.name} {where}{name}" if name else f"{kind.plural} in {namespace or 'the cluster'}"
        return send(self._transport, method, kind.path(namespace, name), what=what, kind=kind, **content)


def managers(body: Object, field: str) -> frozenset[str]:
    """The field managers that set a field of an object's spec."""
    entries = body["metadata"].get("managedFields") or ()
    return frozenset(
        entry.get("manager", "")
        for entry in entries
        if f"f:{field}" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})
    )


def name_of(body: Object) -> str:
    """An object's name in messages, such as `Deployment shiplift/mlflow`."""
    meta = body["metadata"]
    where = f"{meta['namespace']}/" if meta.get("namespace") else ""
    return f"{body['kind']} {where}{meta['name']}"
