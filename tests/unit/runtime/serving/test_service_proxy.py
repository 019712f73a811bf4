from typing import Any, cast

import httpx

from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.service_proxy import FORWARDED, client_of


class Api:
    """An API server that keeps the headers it is sent."""

    namespace = "shiplift"

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}

    def forward(
        self, _method: str, _path: str, *, headers: dict[str, str], **_: Any
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        self.headers = headers
        return 200, [], b"{}"


def test_credentials_for_the_service_pass_the_api_server_under_another_name() -> None:
    """Under their own name they would reach the API server in place of the kubeconfig's."""
    api = Api()
    client = client_of(cast("KubernetesClient", api), "http://mlflow.shiplift.svc:5000")
    client.get("/x", auth=httpx.BasicAuth("ana", "secret"))
    names = {name.lower() for name in api.headers}
    assert api.headers[FORWARDED] == "Basic YW5hOnNlY3JldA=="
    assert "authorization" not in names
    client.get("/x")
    assert FORWARDED not in api.headers
