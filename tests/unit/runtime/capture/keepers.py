"""Clients of a keeper's application without a server between them."""

from typing import Any

import httpx
from starlette.testclient import TestClient

from shiplift.runtime.capture.parts import PLACE, TOKEN_HEADER


def transport_to(app: Any) -> httpx.BaseTransport:
    """Passes on what a keeper reads of a request."""
    client = TestClient(app)

    def answered(request: httpx.Request) -> httpx.Response:
        headers = {name: request.headers[name] for name in (TOKEN_HEADER, PLACE) if name in request.headers}
        path = request.url.raw_path.decode()
        answer = client.request(request.method, path, content=request.read(), headers=headers)
        return httpx.Response(answer.status_code, content=answer.content)

    return httpx.MockTransport(answered)


def client_of(app: Any) -> httpx.Client:
    """A client of the application."""
    return httpx.Client(base_url="http://keeper", transport=transport_to(app))
