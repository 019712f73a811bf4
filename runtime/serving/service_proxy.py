"""HTTP to a cluster's Services from outside, through the API server's proxy: a kubeconfig is all it needs.

It is an httpx transport, so code that speaks HTTP to a Service inside the cluster works from anywhere.
"""

import json

import httpx

from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.connection import ApiResponse

FORWARDED = "X-Shiplift-Authorization"  # the Service's `Authorization`: see `pipelines.installation.authentication`
_TIMEOUT_S = 30.0
# The proxy sets or removes these itself; `authorization` would replace our own credentials for the API server.
_REQUEST_HEADERS = {"host", "connection", "content-length", "accept-encoding", "authorization"}
_RESPONSE_HEADERS = {"connection", "content-length", "content-encoding", "transfer-encoding"}  # the body is read by now


class ServiceProxy(httpx.BaseTransport):
    """Sends requests for `http://SERVICE.NAMESPACE[.svc...]:PORT` through the API server.

    Refusals by the API server itself raise the client's errors; the Service's own errors are responses.
    """

    def __init__(self, api: KubernetesClient) -> None:
        self._api = api

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Sends a request and reads its whole response."""
        name, _, rest = request.url.host.partition(".")
        service = f"/api/v1/namespaces/{rest.split('.')[0]}/services/{name}:{request.url.port or 80}"
        headers = {key: value for key, value in request.headers.items() if key not in _REQUEST_HEADERS}
        if credentials := request.headers.get("authorization"):
            headers[FORWARDED] = credentials
        path, _, query = request.url.raw_path.decode().partition("?")
        pairs = list(httpx.QueryParams(query).multi_items())
        status, sent, content = self._api.forward(
            request.method, f"{service}/proxy{path}", body=request.read() or None, headers=headers, query=pairs
        )
        if status >= 400:
            _raise_api_server_error(status, f"asking service {name}", content)
        passed = [(key, value) for key, value in sent if key.lower() not in _RESPONSE_HEADERS]
        return httpx.Response(status, headers=passed, content=content, request=request)


def client_of(api: KubernetesClient, uri: str) -> httpx.Client:
    """An HTTP client for a Service of `api`'s namespace, or for any other address, which it connects to directly."""
    return httpx.Client(base_url=uri, timeout=_TIMEOUT_S, trust_env=False, transport=transport_to(api, uri))


def transport_to(api: KubernetesClient, uri: str) -> httpx.BaseTransport | None:
    """How to reach an address: through the API server if it is a Service of `api`'s namespace; None: directly."""
    _, _, rest = httpx.URL(uri).host.partition(".")
    return ServiceProxy(api) if rest.split(".")[0] == api.namespace else None


def _raise_api_server_error(status: int, doing: str, content: bytes) -> None:
    """Raises an error if it was the API server that refused, rather than the Service.

    Only the API server answers with a Kubernetes `Status`; other errors are the Service's own.

    Raises:
        ClusterRefused, Temporary: the Service does not exist, may not be used, or has no pod behind it.
    """
    try:
        body = json.loads(content)
    except ValueError:
        return
    if isinstance(body, dict) and body.get("kind") == "Status" and body.get("apiVersion") == "v1":
        ApiResponse(status=status, body=body, doing=doing).checked()
