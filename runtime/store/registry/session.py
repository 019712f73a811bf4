"""MLflow's REST API: its answers as JSON, its pages, and the meaning of its refusals."""

from collections.abc import Iterator
from typing import Any

import httpx

from shiplift.runtime.base.errors import UsageError
from shiplift.runtime.store.mlflow.connection import Connection
from shiplift.runtime.store.mlflow.failures import refused

_API = "/api/2.0/mlflow"
_PAGE = 200


class Session:
    """Requests to the registry behind a connection.

    Every method raises `Temporary` if the server can't be reached or its answer is malformed, and `RegistryDenied` if
    it wants other credentials.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def pages(self, path: str, **query: str) -> Iterator[dict[str, Any]]:
        """The pages of a listing."""
        token = ""
        while True:
            position = {"page_token": token} if token else {}
            page = self.ask("GET", path, params={"max_results": str(_PAGE), **query, **position}) or {}
            yield page
            token = str(page.get("next_page_token") or "")
            if not token:
                return

    def ask(self, method: str, path: str, *, once: bool = False, **content: Any) -> dict[str, Any] | None:
        """The registry's answer as JSON, or None if it does not know the requested thing."""
        response = self.connection.send(method, _API + path, once=once, **content)
        body = _json(response)
        if response.status_code == 404 or (response.status_code == 400 and method == "GET"):
            return None
        if response.status_code == 403 and method == "GET" and self._is_absent(content):
            return None
        reason = str(body.get("message", ""))[:300] if isinstance(body, dict) else ""
        if response.status_code == 400:
            raise UsageError(f"the registry refused {method} {path}: {reason}", do="Fix the setting it names.")
        if response.is_error or not isinstance(body, dict):
            status = response.status_code
            raise refused(f"{method} {path}", status, f"it answered {status} {reason}".strip())
        return body

    def _is_absent(self, content: dict[str, Any]) -> bool:
        """Whether the requested model does not exist: MLflow answers 403, not 404, except to administrators."""
        name = content.get("params", {}).get("name")
        if name is None:
            return False
        quoted = name.replace("'", "\\'")
        search = {"filter": f"name='{quoted}'"}
        answer = self.connection.send("GET", f"{_API}/registered-models/search", params=search)
        body = _json(answer)
        return answer.is_success and isinstance(body, dict) and not body.get("registered_models")


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None  # for example a proxy's error page
