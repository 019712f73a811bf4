"""Services of a cluster, asked from outside it: HTTP through the API server's proxy, for which a kubeconfig is enough.

It is a transport of httpx, so whoever speaks HTTP to a Service inside speaks it from anywhere.
"""

import json

import httpx

from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.connection import Answer

_SECONDS = 30.0
# The proxy sets or takes these itself; `authorization` would be told to the API server, in place of our own.
_OF_THE_CONNECTION = {"host", "connection", "content-length", "accept-encoding", "authorization"}
_OF_THE_TRANSFER = {"connection", "content-length", "content-encoding", "transfer-encoding"}  # the body is read by now


class ServiceProxy(httpx.BaseTransport):
    """Sends what is asked of `http://SERVICE.NAMESPACE[.svc...]:PORT` through the API server.

    It raises what the client does: the API server's own refusals are errors, the Service's answers are answers.
    """

    def __init__(self, api: KubernetesClient) -> None:
        self._api = api

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """One request, and its whole answer."""
        name, _, rest = request.url.host.partition(".")
        service = f"/api/v1/namespaces/{rest.split('.')[0]}/services/{name}:{request.url.port or 80}"
        headers = {key: value for key, value in request.headers.items() if key not in _OF_THE_CONNECTION}
        path, _, query = request.url.raw_path.decode().partition("?")
        pairs = list(httpx.QueryParams(query).multi_items())
        status, told, content = self._api.pass_on(
            request.method, f"{service}/proxy{path}", body=request.read() or None, headers=headers, query=pairs
        )
        if status >= 400:
            _require_of_service(status, f"asking service {name}", content)
        kept = [(key, value) for key, value in told if key.lower() not in _OF_THE_TRANSFER]
        return httpx.Response(status, headers=kept, content=content, request=request)


def client_of(api: KubernetesClient, uri: str) -> httpx.Client:
    """An HTTP client of a Service of `api`'s namespace, or of any other address, which is then asked directly."""
    return httpx.Client(base_url=uri, timeout=_SECONDS, trust_env=False, transport=transport_to(api, uri))


def transport_to(api: KubernetesClient, uri: str) -> httpx.BaseTransport | None:
    """How to reach an address: through the API server where it is a Service of `api`'s namespace; None: directly."""
    _, _, rest = httpx.URL(uri).host.partition(".")
    return ServiceProxy(api) if rest.split(".")[0] == api.namespace else None


def _require_of_service(status: int, doing: str, content: bytes) -> None:
    """Nothing, if it was the Service that refused.

    Raises:
        ClusterRefused, Temporary: it was the API server: no such Service, no right to ask it, nobody behind it.
    """
    try:
        body = json.loads(content)
    except ValueError:
        return
    if isinstance(body, dict) and body.get("kind") == "Status" and body.get("apiVersion") == "v1":
        Answer(status=status, body=body, doing=doing).checked()
