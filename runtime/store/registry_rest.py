"""The registry over its REST API: for processes too small to import MLflow, or too far away to reach it directly.

The receiver and the reconciler run for months in a few dozen megabytes, and a git push's pod should start at once. They
only read versions and their tags, set tags, and register the webhook. The command line reaches a cluster's registry
through `transport`. A registry that does not respond raises `Temporary`, here too. Credentials and certificates come
from the same variables as MLflow's (`MLFLOW_TRACKING_TOKEN`, `_USERNAME`, `_SERVER_CERT_PATH`, `_INSECURE_TLS`).
"""

import os
import ssl
from collections.abc import Iterator
from typing import Any

import httpx

from shiplift.runtime.base.errors import NotFound, Temporary, UsageError
from shiplift.runtime.base.text import printable
from shiplift.runtime.store.registry import TAG, VersionInfo, refused, unreachable

PATIENT_S = 30.0  # for background work, and for pages over a thousand models
_API = "/api/2.0/mlflow"
_PAGE = 200
_VERSION_CREATED = {"entity": "MODEL_VERSION", "action": "CREATED"}


class RestRegistry:
    """A model registry at `uri`.

    Every method raises `Temporary` if it can't be reached or its answer is malformed, and `RegistryDenied` if it wants
    other credentials.
    """

    def __init__(self, uri: str, *, timeout_s: float = 5, transport: httpx.BaseTransport | None = None) -> None:
        self._client = httpx.Client(
            base_url=uri.rstrip("/"), timeout=timeout_s, trust_env=False, verify=_trusted(), transport=transport
        )

    # --- versions ---

    def has(self, name: str, version: int) -> bool:
        """Whether the version exists."""
        return self._version(name, version) is not None

    def version(self, name: str, version: int) -> VersionInfo | None:
        """A version as it is now, or None if it does not exist."""
        body = self._version(name, version)
        return _info(body["model_version"]) if body else None

    def models(self) -> Iterator[tuple[str, int, dict[str, int]]]:
        """Each model's name, highest version number (0 if it has none) and aliases, one page at a time."""
        for model in self._models():
            highest = max((info.version for info in _latest(model)), default=0)
            yield str(model.get("name", "")), highest, _aliases(model)

    def newest(self) -> Iterator[VersionInfo]:
        """Each model's version with the highest number, one page of models at a time."""
        for model in self._models():
            if versions := _latest(model):
                yield max(versions, key=lambda info: info.version)

    def versions(self, name: str) -> list[VersionInfo]:
        """Every version of a model, in no particular order.

        Raises:
            NotFound: the model does not exist, or has no versions.
        """
        quoted = name.replace("'", "\\'")
        pages = self._pages("/model-versions/search", filter=f"name='{quoted}'")
        versions = [_info(body) for page in pages for body in page.get("model_versions", [])]
        if not versions:
            raise _no_versions(name)
        return versions

    def recent(self, name: str = "") -> list[VersionInfo]:
        """The newest versions of a model, or of all models, newest first: at most 200 of them."""
        quoted = name.replace("'", "\\'")
        chosen = {"filter": f"name='{quoted}'"} if name else {}
        query = {"max_results": str(_PAGE), "order_by": "creation_timestamp DESC", **chosen}
        body = self._ask("GET", "/model-versions/search", params=query) or {}
        return [_info(version) for version in body.get("model_versions", [])]

    def aliases(self, name: str) -> dict[str, int]:
        """A model's aliases and the versions they point at; empty if the model does not exist."""
        body = self._ask("GET", "/registered-models/get", params={"name": name})
        return _aliases((body or {}).get("registered_model", {}))

    def newest_of(self, name: str) -> VersionInfo:
        """A model's version with the highest number.

        Raises:
            NotFound: the model does not exist, or has no versions.
        """
        body = self._ask("GET", "/registered-models/get", params={"name": name})
        versions = _latest((body or {}).get("registered_model", {}))
        if not versions:
            raise _no_versions(name)
        return max(versions, key=lambda info: info.version)

    def tag(self, name: str, version: int, **tags: str) -> None:
        """Sets `shiplift.KEY` tags; values longer than the registry's limit are cut.

        Raises:
            NotFound: the version does not exist.
        """
        for key, value in tags.items():
            body = {"name": name, "version": str(version), "key": f"{TAG}{key}", "value": printable(value, limit=4900)}
            if self._ask("POST", "/model-versions/set-tag", json=body) is None:
                raise NotFound(
                    f"the registry has no version {version} of model {name!r}",
                    do="It was probably deleted; register it again if it should be released.",
                )

    # --- files ---

    def read_text(self, run_id: str, path: str) -> str | None:
        """A small text artifact of a run; None where there is none."""
        answer = self._send("GET", "/get-artifact", params={"run_uuid": run_id, "path": path})
        if answer.status_code == 404:
            return None
        if answer.is_error:
            status = answer.status_code
            raise refused(f"artifact {path!r} of run {run_id}", status, f"it answered {status}")
        return answer.content.decode(errors="replace")

    # --- webhooks ---

    def ensure_webhook(self, name: str, url: str, secret: str, *, renew: bool, description: str = "") -> None:
        """Creates the webhook that announces new versions; `renew` updates and enables an existing one."""
        body = {"name": name, "url": url, "events": [_VERSION_CREATED], "secret": secret, "description": description}
        existing = self.webhook(name)
        if existing is None:
            self._ask("POST", "/webhooks", json=body)
        elif renew or existing.get("url") != url:
            self._ask("PATCH", f"/webhooks/{existing['webhook_id']}", json={**body, "status": "ACTIVE"})
        elif existing.get("description", "") != description:
            self.describe_webhook(name, description)

    def describe_webhook(self, name: str, description: str) -> None:
        """Changes the description of a webhook, if it exists."""
        existing = self.webhook(name)
        if existing is not None:
            self._ask("PATCH", f"/webhooks/{existing['webhook_id']}", json={"description": description})

    def webhook(self, name: str) -> dict[str, Any] | None:
        """A webhook by its name, without its secret; None if there is none."""
        pages = self._pages("/webhooks")
        return next((hook for page in pages for hook in page.get("webhooks", []) if hook.get("name") == name), None)

    # --- requests ---

    def _version(self, name: str, version: int) -> dict[str, Any] | None:
        return self._ask("GET", "/model-versions/get", params={"name": name, "version": str(version)})

    def _models(self) -> Iterator[dict[str, Any]]:
        for page in self._pages("/registered-models/search"):
            yield from page.get("registered_models", [])

    def _pages(self, path: str, **query: str) -> Iterator[dict[str, Any]]:
        token = ""
        while True:
            position = {"page_token": token} if token else {}
            page = self._ask("GET", path, params={"max_results": str(_PAGE), **query, **position}) or {}
            yield page
            token = str(page.get("next_page_token") or "")
            if not token:
                return

    def _ask(self, method: str, path: str, **content: Any) -> dict[str, Any] | None:
        """The registry's answer as JSON, or None if it does not know the thing asked for."""
        response = self._send(method, _API + path, **content)
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
        answer = self._send("GET", f"{_API}/registered-models/search", params={"filter": f"name='{quoted}'"})
        body = _json(answer)
        return answer.is_success and isinstance(body, dict) and not body.get("registered_models")

    def _send(self, method: str, path: str, **content: Any) -> httpx.Response:
        token, user = os.environ.get("MLFLOW_TRACKING_TOKEN"), os.environ.get("MLFLOW_TRACKING_USERNAME")
        auth = (user, os.environ.get("MLFLOW_TRACKING_PASSWORD", "")) if user else None
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            return self._client.request(method, path, headers=headers, auth=auth, **content)
        except httpx.HTTPError as error:
            raise unreachable("the registry", error) from error


def version_exists(uri: str, name: str, version: int, *, timeout_s: float = 5) -> bool:
    """Whether the registry has a version.

    Raises:
        Temporary: the registry does not respond.
    """
    return RestRegistry(uri, timeout_s=timeout_s).has(name, version)


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


def _no_versions(name: str) -> NotFound:
    return NotFound(f"the registry has no versions of model {name!r}", do="Register one, or fix the name.")


def _latest(model: dict[str, Any]) -> list[VersionInfo]:
    return [_info(body) for body in model.get("latest_versions", [])]


def _aliases(model: dict[str, Any]) -> dict[str, int]:
    try:
        return {str(entry["alias"]): int(entry["version"]) for entry in model.get("aliases", [])}
    except (KeyError, TypeError, ValueError) as error:
        raise Temporary(f"the registry sent a malformed alias: {error!r}", do="Check MLFLOW_TRACKING_URI.") from error


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None  # such as a proxy's error page


def _info(body: Any) -> VersionInfo:
    try:
        return VersionInfo(
            name=str(body["name"]),
            version=int(body["version"]),
            source=str(body.get("source", "")),
            run_id=str(body.get("run_id", "")),
            created_at=int(body.get("creation_timestamp", 0)) / 1000,
            tags={str(tag["key"]): str(tag.get("value", "")) for tag in body.get("tags", [])},
            aliases=tuple(str(alias) for alias in body.get("aliases", []) if isinstance(alias, str)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Temporary(f"the registry sent a malformed version: {error!r}", do="Check MLFLOW_TRACKING_URI.") from error
