"""Sends requests to the Kubernetes API, and translates its errors into ours.

The official client's typed models are not used: they lack custom kinds, and a list of them takes several times the
memory of the JSON.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from shiplift.runtime.base.errors import ClusterRefused, ClusterUnreachable, ShipliftError, Temporary
from shiplift.runtime.serving.kubernetes.kinds import ResourceKind
from shiplift.runtime.serving.kubernetes.transport import Transport, encoded, in_pod

Object = dict[str, Any]
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
_DOING: dict[Method, str] = {
    "GET": "reading",
    "POST": "creating",
    "PUT": "replacing",
    "PATCH": "changing",
    "DELETE": "deleting",
}


class Conflict(Exception):
    """The object was changed first by another writer, or one of that name already exists."""


def quantity(text: str) -> Decimal:
    """A quantity as a plain number: `500m` is 0.5, `1Ki` is 1024."""
    from kubernetes.utils.quantity import parse_quantity  # noqa: PLC0415 - like the client

    number: Decimal = parse_quantity(text)
    return number


@dataclass(frozen=True, kw_only=True)
class ApiResponse:
    """The API server's answer to a request, which `doing` describes, as in `changing Deployment models/digits-3`."""

    status: int
    body: Object
    doing: str
    kind: ResourceKind | None = None

    def checked(self) -> Object:
        """The answer's body.

        Raises:
            Conflict: the object has changed or been replaced, or an object of that name exists.
            ClusterRefused: the cluster forbids it, finds it invalid, or does not know the kind or the namespace.
            Temporary: the API server failed or is overloaded, or no longer accepts this pod's token.
        """
        if self.status >= 400:
            raise self._error()
        return self.body

    def or_none(self) -> Object | None:
        """The answer's body, or None if the object does not exist. Raises what `checked` raises."""
        return None if self.status == 404 else self.checked()

    def _error(self) -> Exception:
        message = _line(self.body.get("message", ""))
        if self.status == 409:
            return Conflict(message)
        if self.status in (408, 410, 429) or self.status >= 500:  # 410: a list's next page has expired
            return Temporary(f"{self.doing} failed with status {self.status}: {message}", do="Try again in a moment.")
        if self.status == 401 and in_pod():  # a pod's token ends when the pod is deleted, before its processes do
            what = f"{self.doing} failed: this pod's token is not valid: {message}"
            return Temporary(what, do="Ask another replica.")
        if self.status in (401, 403):
            do = "Run `shiplift install`, which grants it." if in_pod() else "Use a kubeconfig that may do that."
            return ClusterRefused(f"the cluster forbids {self.doing}: {message}", do=do)
        if self.status == 404:
            return self._missing(message)
        return ClusterRefused(
            f"the cluster refused {self.doing} ({self.status}): {message}", do="Fix the value it names."
        )

    def _missing(self, message: str) -> ClusterRefused:
        if self.kind is not None and not (self.body.get("details") or {}).get("name"):
            return unknown(self.kind)
        return ClusterRefused(f"{self.doing} failed: {message}", do="Run `shiplift install` first.")


def send(
    transport: Transport,
    method: Method,
    path: str,
    *,
    what: str,
    kind: ResourceKind | None = None,
    body: Object | None = None,
    query: dict[str, str] | None = None,
    content: str = "application/json",
) -> ApiResponse:
    """Sends a request through the transport from `connect`; `what` names the object for people.

    Raises:
        Temporary: the connection broke; in a pod, also if none can be made, since the cluster must exist there.
        ClusterUnreachable: a kubeconfig leads to no API server.
    """
    with translated_errors():
        response = transport.open(
            method,
            path,
            query=list((query or {}).items()),
            body=None if body is None else encoded(body),
            headers={"Accept": "application/json", "Content-Type": content},
        )
        text = response.data
    return ApiResponse(status=response.status, body=json_object(text), doing=f"{_DOING[method]} {what}", kind=kind)


def send_bytes(
    transport: Transport,
    method: str,
    path: str,
    *,
    query: list[tuple[str, str]],
    headers: dict[str, str],
    body: bytes | None,
) -> tuple[int, list[tuple[str, str]], bytes]:
    """Sends a request of any content; returns the answer's status, headers and body, even of an error.

    Raises:
        Temporary, ClusterUnreachable: as `send`.
    """
    with translated_errors():
        response = transport.open(method, path, query=query, headers=headers, body=body)
        return int(response.status), list(response.headers.items()), bytes(response.read())


@contextmanager
def translated_errors() -> Iterator[None]:
    """Translates the errors of a connection into ours."""
    from urllib3.exceptions import HTTPError  # noqa: PLC0415 - comes with kubernetes

    try:
        yield
    except HTTPError as error:
        raise _no_answer(error) from error


def unknown(kind: ResourceKind) -> ClusterRefused:
    """The error for a kind that the cluster does not have."""
    return ClusterRefused(
        f"the cluster does not know the kind {kind.name} ({kind.version})",
        do=f"Install {kind.origin}, then run the same command again.",
    )


def _no_answer(error: Exception) -> ShipliftError:
    from urllib3.exceptions import ProtocolError, ReadTimeoutError  # noqa: PLC0415

    what = f"the cluster does not answer: {_line(error)}"
    if in_pod() or isinstance(getattr(error, "reason", None) or error, (ProtocolError, ReadTimeoutError)):
        return Temporary(what, do="Check the API server, then try again.")
    return ClusterUnreachable(what, do="Check KUBECONFIG and the cluster, then run the same command again.")


def json_object(text: bytes | None) -> Object:
    """An answer's JSON object; anything else, such as a plain 404 or a proxy's page, becomes its `message`."""
    try:
        body = json.loads(text or b"{}")
    except ValueError:
        body = (text or b"").decode(errors="replace")
    return body if isinstance(body, dict) else {"message": str(body)}


def _line(text: object) -> str:
    return " ".join(str(text).split())[:600]
