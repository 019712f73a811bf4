"""Answers of the Kubernetes API that arrive line by line: growing logs, and the events of watches."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from shiplift.runtime.base.errors import Temporary
from shiplift.runtime.serving.kubernetes.connection import ApiResponse, Object, json_object, translated_errors
from shiplift.runtime.serving.kubernetes.kinds import ResourceKind
from shiplift.runtime.serving.kubernetes.transport import Transport


def read_lines(
    transport: Transport,
    path: str,
    *,
    what: str,
    query: list[tuple[str, str]],
    silent_s: float | None,
    kind: ResourceKind | None = None,
    absent: tuple[int, ...] = (),
) -> Iterator[str]:
    """The lines of an answer as they arrive; none if its status is one of `absent`.

    The connection is made before this returns. `silent_s` may pass between two lines; None: any time.

    Raises:
        ClusterRefused: the cluster forbids it, or does not know the kind.
        Temporary, ClusterUnreachable: as `send`.
    """
    with translated_errors():
        response = transport.open("GET", path, query=query, silent_s=silent_s)
        if response.status < 400:
            return _lines(response)
        answer = ApiResponse(
            status=response.status, body=json_object(response.read()), doing=f"reading {what}", kind=kind
        )
    if answer.status not in absent:
        answer.checked()
    return iter(())


def event_of(line: str, what: str, kind: ResourceKind) -> Object:
    """An event of a watch from its line: its `type` and its `object`.

    Raises:
        Temporary, ClusterRefused: the line is an error of the API server, or malformed.
    """
    event = json_object(line.encode())
    body = event.get("object")
    if event.get("type") == "ERROR" and isinstance(body, dict):  # after status 200, an error can only come as an event
        ApiResponse(status=int(body.get("code") or 500), body=body, doing=f"reading {what}", kind=kind).checked()
    if "type" not in event or not isinstance(body, dict) or "metadata" not in body:
        raise Temporary(f"the cluster sent a malformed event of {what}: {line[:200]}", do="Try again in a moment.")
    return event


def _lines(response: Any) -> Iterator[str]:
    with translated_errors(), closing(response):
        yield from (line.decode(errors="replace").rstrip("\n") for line in response)
