"""Requests to MLflow's REST API: its certificates, its credentials, and errors that are ours.

Credentials and certificates come from the same variables as those of MLflow's own client (`MLFLOW_TRACKING_TOKEN`,
`_USERNAME`, `_PASSWORD`, `_SERVER_CERT_PATH`, `_INSECURE_TLS`). That client takes 1.3 s of CPU time and 170 MB, in each
of a release's pods.
"""

import os
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import tenacity

from shiplift.runtime.base.errors import UsageError
from shiplift.runtime.store.registry.terms import refused, unreachable

_API = "/api/2.0/mlflow"
_PAGE = 200
_CHUNK = 1 << 20
_AGAIN_S = 1.0  # before the first repetition; doubled before each one after it
_PASSING = (429, 502, 503, 504)  # statuses of a server that is busy or starting


class Session:
    """Requests to a registry at `uri`, each repeated up to `repeats` times if the server is away or busy.

    Every method raises `Temporary` if the server can't be reached or its answer is malformed, and `RegistryDenied` if
    it wants other credentials.
    """

    def __init__(
        self, uri: str, *, timeout_s: float, repeats: int = 0, transport: httpx.BaseTransport | None = None
    ) -> None:
        self._client = httpx.Client(
            base_url=uri.rstrip("/"), timeout=timeout_s, trust_env=False, verify=_trusted(), transport=transport
        )
        self._repeats = repeats

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
        """The registry's answer as JSON, or None if it does not know the thing asked for."""
        response = self.send(method, _API + path, once=once, **content)
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
        """Whether the model asked for is not there: MLflow answers 403, not 404, to who is not its administrator."""
        name = content.get("params", {}).get("name")
        if name is None:
            return False
        quoted = name.replace("'", "\\'")
        answer = self.send("GET", f"{_API}/registered-models/search", params={"filter": f"name='{quoted}'"})
        body = _json(answer)
        return answer.is_success and isinstance(body, dict) and not body.get("registered_models")

    def send(self, method: str, path: str, *, once: bool = False, **content: Any) -> httpx.Response:
        """The server's response, whatever its status. What must not happen twice is sent `once`."""
        try:
            return self._retrying(once)(self._send, method, path, **content)
        except httpx.HTTPError as error:
            raise unreachable("the registry", error) from error

    def download(self, path: str, to: Path) -> int:
        """Writes a response's body to the file `to`; returns the status, with which nothing is written if not 200."""

        def once() -> httpx.Response:
            with self._client.stream("GET", path, **_proof()) as response:
                if response.status_code == 200:
                    with to.open("wb") as file:
                        for chunk in response.iter_bytes(_CHUNK):
                            file.write(chunk)
                return response

        try:
            return self._retrying(False)(once).status_code
        except httpx.HTTPError as error:
            raise unreachable("the registry", error) from error

    def _send(self, method: str, path: str, **content: Any) -> httpx.Response:
        return self._client.request(method, path, **_proof(), **content)

    def _retrying(self, once: bool) -> tenacity.Retrying:
        return tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(httpx.TransportError)
            | tenacity.retry_if_result(lambda response: response.status_code in _PASSING),
            wait=tenacity.wait_exponential(_AGAIN_S),
            stop=tenacity.stop_after_attempt(1 if once else 1 + self._repeats),
            retry_error_callback=_last,
        )


def _last(state: tenacity.RetryCallState) -> Any:
    """What the last attempt returned or raised."""
    assert state.outcome is not None  # noqa: S101 - it ended
    return state.outcome.result()


def account() -> str:
    """The name of the account that asks; empty if the registry wants none."""
    return os.environ.get("MLFLOW_TRACKING_USERNAME", "")


def _proof() -> dict[str, Any]:
    """What proves who asks, read anew for each request: a caller may set it late."""
    token, user = os.environ.get("MLFLOW_TRACKING_TOKEN"), account()
    auth = (user, os.environ.get("MLFLOW_TRACKING_PASSWORD", "")) if user else None
    return {"headers": {"Authorization": f"Bearer {token}"} if token else {}, "auth": auth}


def _trusted() -> ssl.SSLContext | bool:
    """The certificates that the registry's is verified against, or False for no verification.

    Raises:
        UsageError: the certificate file can't be read.
    """
    if os.environ.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() == "true":
        return False
    file = os.environ.get("MLFLOW_TRACKING_SERVER_CERT_PATH")
    try:
        return ssl.create_default_context(cafile=file) if file else True
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"MLFLOW_TRACKING_SERVER_CERT_PATH: {file} can't be read: {error}", do="Fix the variable or the file."
        ) from error


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None  # such as a proxy's error page
