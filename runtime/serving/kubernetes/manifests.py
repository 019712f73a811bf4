"""Putting objects of any kind on a cluster, and taking them off again: what `serving.kubernetes.api` is too small for.

Server-side apply under one field manager: idempotent, and what others own in an object stays theirs. Which kinds there
are is asked of the cluster, so a missing one is told by its name.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from shiplift.runtime.base.errors import ClusterRefused, ClusterUnreachable, Temporary
from shiplift.runtime.serving.kubernetes.api import MANAGER, Object, connect

Change = Literal["created", "configured", "unchanged"]
_TIMEOUT_S = (5, 60)


@dataclass(frozen=True)
class Manifests:
    """One cluster.

    Every method raises `ClusterUnreachable` where there is no cluster to talk to, `Temporary` where its API server
    fails, and `ClusterRefused` where it forbids something, finds an object invalid or does not know its kind.
    """

    _cache: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="shiplift-")) / "kinds.json")

    @cached_property
    def _client(self) -> Any:
        from kubernetes import dynamic  # noqa: PLC0415 - 1 s, paid only by who needs it

        with _translated("the cluster's kinds"):
            return dynamic.DynamicClient(connect(), cache_file=str(self._cache))

    def apply(self, body: Object, *, dry_run: bool = False) -> Change:
        """Makes an object what `body` says; with `dry_run` the cluster checks it, and changes nothing."""
        what, namespace = name_of(body), body["metadata"].get("namespace")
        before = self.get(body["apiVersion"], body["kind"], body["metadata"]["name"], namespace)
        with _translated(what):
            after = self._kind(body["apiVersion"], body["kind"]).server_side_apply(
                body=body, name=body["metadata"]["name"], namespace=namespace, field_manager=MANAGER,
                force_conflicts=True, dry_run="All" if dry_run else None, _request_timeout=_TIMEOUT_S,
            )  # fmt: skip
        if before is None:
            return "created"
        return "unchanged" if _settled(before) == _settled(after.to_dict()) else "configured"

    def get(self, version: str, kind: str, name: str, namespace: str | None = None) -> Object | None:
        """An object; None where there is none."""
        with _translated(f"{kind} {name}", missing_is_none=True):
            found = self._kind(version, kind).get(name=name, namespace=namespace, _request_timeout=_TIMEOUT_S)
            return dict(found.to_dict())
        return None

    def find(self, version: str, kind: str, namespace: str | None = None, selector: str = "") -> list[Object]:
        """Every object whose labels match; none where the cluster doesn't know the kind."""
        if not self.serves(version, kind):
            return []
        with _translated(f"{kind}s"):
            resource = self._kind(version, kind)
            found = resource.get(namespace=namespace, label_selector=selector, _request_timeout=_TIMEOUT_S)
            items: list[Object] = found.to_dict().get("items", [])
            return [{**item, "apiVersion": version, "kind": kind} for item in items]
        return []

    def create(self, body: Object) -> None:
        """A new object; one that is there already stays as it is."""
        from kubernetes.dynamic.exceptions import ConflictError  # noqa: PLC0415

        with _translated(name_of(body)):
            try:
                self._kind(body["apiVersion"], body["kind"]).create(
                    body=body, namespace=body["metadata"].get("namespace"), _request_timeout=_TIMEOUT_S
                )
            except ConflictError:
                return

    def merge(self, body: Object) -> None:
        """Merges `body` into the object of its name (JSON merge patch, RFC 7396)."""
        with _translated(name_of(body)):
            self._kind(body["apiVersion"], body["kind"]).patch(
                body=body, name=body["metadata"]["name"], namespace=body["metadata"].get("namespace"),
                content_type="application/merge-patch+json", _request_timeout=_TIMEOUT_S,
            )  # fmt: skip

    def delete(self, body: Object) -> bool:
        """Deletes an object and, in the background, what it owns; gives whether there was one."""
        meta = body["metadata"]
        with _translated(name_of(body), missing_is_none=True):
            self._kind(body["apiVersion"], body["kind"]).delete(
                name=meta["name"], namespace=meta.get("namespace"),
                body={"propagationPolicy": "Background"}, _request_timeout=_TIMEOUT_S,
            )  # fmt: skip
            return True
        return False

    def serves(self, version: str, kind: str) -> bool:
        """Whether the cluster knows a kind."""
        from kubernetes.dynamic.exceptions import ResourceNotFoundError  # noqa: PLC0415

        with _translated("the cluster's kinds"):
            try:
                self._client.resources.get(api_version=version, kind=kind)
            except ResourceNotFoundError:
                return False
            return True
        return False

    def _kind(self, version: str, kind: str) -> Any:
        return self._client.resources.get(api_version=version, kind=kind)


def name_of(body: Object) -> str:
    """How an object is called in messages: `Deployment shiplift/mlflow`."""
    meta = body["metadata"]
    where = f"{meta['namespace']}/" if meta.get("namespace") else ""
    return f"{body['kind']} {where}{meta['name']}"


def _settled(body: Object) -> Object:
    """An object without what changes by itself. (A dry run bumps nothing, so its version says nothing.)"""
    meta = {k: v for k, v in body["metadata"].items() if k not in ("managedFields", "resourceVersion", "generation")}
    return {**body, "metadata": meta, "status": None}


@contextmanager
def _translated(what: str, *, missing_is_none: bool = False) -> Iterator[None]:
    import urllib3  # noqa: PLC0415 - comes with kubernetes
    from kubernetes.dynamic import exceptions as dynamic  # noqa: PLC0415

    try:
        yield
    except dynamic.ResourceNotFoundError as error:
        kind = what.split(maxsplit=1)[0]
        raise ClusterRefused(f"the cluster does not know the kind {kind}", do=_ADVICE.get(kind, _INSTALL)) from error
    except dynamic.DynamicApiError as error:
        if error.status == 404 and missing_is_none:
            return
        raise _refusal(what, error) from error
    except urllib3.exceptions.HTTPError as error:
        raise ClusterUnreachable(
            f"the cluster does not answer: {' '.join(str(error).split())[:300]}",
            do="Check KUBECONFIG and the cluster, then run the same command again.",
        ) from error


def _refusal(what: str, error: Any) -> ClusterRefused | Temporary:
    try:
        said = str(error.summary())
    except (ValueError, KeyError, TypeError, AttributeError):  # the answer is no Status object
        said = str(error.body or error.reason)
    said = " ".join(said.split())[:600]
    if error.status in (408, 409, 429) or error.status >= 500:
        return Temporary(f"the cluster answered {error.status} to {what}: {said}", do="Run the same command again.")
    if error.status in (401, 403):
        return ClusterRefused(f"the cluster forbids {what}: {said}", do="Use a kubeconfig with the right to it.")
    return ClusterRefused(f"the cluster refused {what} ({error.status}): {said}", do="Mend the value it names.")


_INSTALL = "Install what defines it, then run the same command again."
_ADVICE = {
    "WorkflowTemplate": "Install Argo Workflows (4.0 or newer), then run the same command again.",
    "Gateway": "Install the Gateway API and an implementation of it, or leave `gateway` out of the values.",
}
