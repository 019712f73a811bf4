"""One request to the Kubernetes API, and the one translation of what can go wrong with it into our errors.

TLS, credentials and their renewal are the official client's. Its typed models are left out: they know no custom kinds,
and a list of them takes several times the memory of the JSON.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from shiplift.runtime.base.errors import ClusterRefused, ClusterUnreachable, ShipliftError, Temporary
from shiplift.runtime.serving.kubernetes.kinds import Kind

Object = dict[str, Any]
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
_TIMEOUT_S = (5, 60)  # to connect, and between two bytes of the answer
_PAUSE_S = 0.25  # before the second repetition of a request, doubled with each
_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
_DOING: dict[Method, str] = {
    "GET": "reading", "POST": "creating", "PUT": "replacing", "PATCH": "changing", "DELETE": "deleting"
}  # fmt: skip


class Conflict(Exception):
    """Somebody else wrote the object first, or made one of that name."""


def connect() -> Any:
    """The official client's transport, with the pod's service account or the user's kubeconfig.

    A request that may be sent twice without harm is, after a pause, where the connection breaks or the API server asks
    for it (`Retry-After`); a creation is not.

    Raises:
        ClusterUnreachable: there is no usable configuration.
    """
    import urllib3  # noqa: PLC0415 - comes with kubernetes
    from kubernetes import client, config  # noqa: PLC0415 - half a second and 46 MB, paid only by who needs it
    from yaml import YAMLError  # noqa: PLC0415

    settings = client.Configuration()
    repeatable = urllib3.Retry.DEFAULT_ALLOWED_METHODS | {"PATCH"}
    settings.retries = urllib3.Retry(
        3, connect=1, backoff_factor=_PAUSE_S, allowed_methods=repeatable, raise_on_status=False
    )
    try:
        if _in_pod():
            config.load_incluster_config(client_configuration=settings)
        else:
            config.load_kube_config(os.environ.get("KUBECONFIG"), client_configuration=settings)
    except (config.ConfigException, OSError, YAMLError, TypeError, AttributeError) as error:  # the last two: odd shapes
        raise ClusterUnreachable(
            f"there is no usable cluster configuration: {_line(error)}", do="Set KUBECONFIG, then try again."
        ) from error
    return client.ApiClient(settings)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the API server answered; `doing` says to what, for people: `changing Deployment models/digits-3`."""

    status: int
    body: Object
    doing: str
    kind: Kind | None = None

    def checked(self) -> Object:
        """The answer.

        Raises:
            Conflict: the object is not the one that was meant, or there is one of that name.
            ClusterRefused: the cluster forbids it, finds it invalid, or does not know the kind or the namespace.
            Temporary: the API server failed, or had too much to do.
        """
        if self.status >= 400:
            raise self._error()
        return self.body

    def or_none(self) -> Object | None:
        """The answer, or None where there is no such object. Raises what `checked` raises."""
        return None if self.status == 404 else self.checked()

    def _error(self) -> Exception:
        message = _line(self.body.get("message", ""))
        if self.status == 409:
            return Conflict(message)
        if self.status in (408, 410, 429) or self.status >= 500:  # 410: the rest of a list is too old to be continued
            return Temporary(
                f"{self.doing} failed, the cluster answered {self.status}: {message}", do="Try again in a moment."
            )
        if self.status in (401, 403):
            do = "Grant the right; `shiplift install` does." if _in_pod() else "Use a kubeconfig with the right to it."
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
    transport: Any, method: Method, path: str, *, what: str, kind: Kind | None = None, body: Object | None = None,
    query: dict[str, str] | None = None, content: str = "application/json",
) -> Answer:  # fmt: skip
    """Sends one request through what `connect` gave; `what` names the object for people.

    Raises:
        Temporary: the connection broke, or, in a pod, there is none: the cluster is there, as the pod shows.
        ClusterUnreachable: a kubeconfig leads to no API server.
    """
    request = transport.param_serialize(
        method, path, query_params=list((query or {}).items()), body=body, auth_settings=["BearerToken"],
        header_params={"Accept": "application/json", "Content-Type": content},
    )  # fmt: skip
    with _answering():
        response = transport.call_api(*request, _request_timeout=_TIMEOUT_S)
        text = response.read()
    return Answer(status=response.status, body=_json(text), doing=f"{_DOING[method]} {what}", kind=kind)


def send_bytes(
    transport: Any, method: str, path: str, *, query: list[tuple[str, str]], headers: dict[str, str], body: bytes | None
) -> tuple[int, list[tuple[str, str]], bytes]:
    """The same for a request and an answer of any kind; gives status, headers and body, whatever they are.

    Raises:
        Temporary, ClusterUnreachable: as `send`.
    """
    with _answering():
        response = _open(transport, method, path, query, headers, body)
        return int(response.status), list(response.headers.items()), bytes(response.read())


def read_lines(transport: Any, path: str, *, what: str, query: list[tuple[str, str]], endless: bool) -> Iterator[str]:
    """The lines of an answer as they come, nothing where there is none; `endless`: any time may pass between two.

    Raises:
        ClusterRefused: the cluster forbids it.
        Temporary, ClusterUnreachable: as `send`.
    """
    with _answering():
        response = _open(transport, "GET", path, query, {}, None, endless=endless)
        if response.status in (400, 404):
            return
        if response.status >= 400:
            raise Answer(status=response.status, body=_json(response.read()), doing=f"reading {what}")._error()
        yield from (line.decode(errors="replace").rstrip("\n") for line in response)


def _open(
    transport: Any, method: str, path: str, query: list[tuple[str, str]], headers: dict[str, str], body: bytes | None,
    *, endless: bool = False,
) -> Any:  # fmt: skip
    """urllib3's response, its body not yet read: the generated client knows neither bytes nor streams."""
    import urllib3  # noqa: PLC0415 - comes with kubernetes

    verb, url, sent, _, _ = transport.param_serialize(
        method, path, query_params=query, header_params=headers, auth_settings=["BearerToken"]
    )
    connect, read = _TIMEOUT_S
    timeout = urllib3.Timeout(connect=connect, read=None if endless else read)
    pool = transport.rest_client.pool_manager
    return pool.request(verb, url, body=body, headers=sent, timeout=timeout, preload_content=False)


@contextmanager
def _answering() -> Iterator[None]:
    """What keeps the API server from answering, as ours."""
    from kubernetes.client.exceptions import ApiException  # noqa: PLC0415
    from urllib3.exceptions import HTTPError  # noqa: PLC0415 - comes with kubernetes

    try:
        yield
    except (HTTPError, ApiException) as error:  # the latter: the certificates don't match
        raise _no_answer(error) from error


def unknown(kind: Kind) -> ClusterRefused:
    """The error for a kind that the cluster does not have."""
    return ClusterRefused(
        f"the cluster does not know the kind {kind.name} ({kind.version})",
        do=f"Install {kind.origin}, then run the same command again.",
    )


def _no_answer(error: Exception) -> ShipliftError:
    from urllib3.exceptions import ProtocolError, ReadTimeoutError  # noqa: PLC0415

    what = f"the cluster does not answer: {_line(error)}"
    if _in_pod() or isinstance(getattr(error, "reason", None) or error, (ProtocolError, ReadTimeoutError)):
        return Temporary(what, do="Check it, then try again.")
    return ClusterUnreachable(what, do="Check KUBECONFIG and the cluster, then run the same command again.")


def _in_pod() -> bool:
    return _TOKEN.is_file()


def _json(text: bytes | None) -> Object:
    """An answer; whatever is no JSON object (a plain 404, a proxy's page) as a status with that message."""
    try:
        body = json.loads(text or b"{}")
    except ValueError:
        body = (text or b"").decode(errors="replace")
    return body if isinstance(body, dict) else {"message": str(body)}


def _line(text: object) -> str:
    return " ".join(str(text).split())[:600]
