"""The registry over its REST API: for processes too small to import MLflow, or too far away to reach it directly.

The receiver and the reconciler run for months in a few dozen megabytes, and a git push's pod should start at once; all
they ask is which versions there are, what their tags say, and who is told of new ones. The command line asks a
cluster's registry through `transport`. What does not answer is `Temporary`, here too. Who asks, and
which certificates count, is read from the same variables as MLflow's (`MLFLOW_TRACKING_TOKEN`, `_USERNAME`,
`_SERVER_CERT_PATH`, `_INSECURE_TLS`).
"""

import os
import ssl
from collections.abc import Iterator
from typing import Any

import httpx

from shiplift.runtime.base.errors import NotFound, Temporary, UsageError
from shiplift.runtime.store.registry import TAG, VersionInfo, unreachable

PATIENT_S = 30.0  # for who does other things meanwhile, or has a person wait for a thousand models
_API = "/api/2.0/mlflow"
_PAGE = 200
_VERSION_CREATED = {"entity": "MODEL_VERSION", "action": "CREATED"}


class RestRegistry:
    """A model registry at `uri`; every method raises `Temporary` when it can't be reached, or answers oddly."""

    def __init__(self, uri: str, *, timeout_s: float = 5, transport: httpx.BaseTransport | None = None) -> None:
        self._client = httpx.Client(
            base_url=uri.rstrip("/"), timeout=timeout_s, trust_env=False, verify=_trusted(), transport=transport
        )

    # --- versions ---

    def has(self, name: str, version: int) -> bool:
        """Whether there is such a version."""
        return self._version(name, version) is not None

    def version(self, name: str, version: int) -> VersionInfo | None:
        """A version as it is now; None: there is none."""
        said = self._version(name, version)
        return _info(said["model_version"]) if said else None

    def models(self) -> Iterator[tuple[str, int, dict[str, int]]]:
        """Each model's name, highest version number (0: none) and aliases; one page of models at a time."""
        for model in self._models():
            yield str(model.get("name", "")), max((one.version for one in _latest(model)), default=0), _aliases(model)

    def newest(self) -> Iterator[VersionInfo]:
        """Each model's version with the highest number; one page of models at a time."""
        for model in self._models():
            if versions := _latest(model):
                yield max(versions, key=lambda info: info.version)

    def versions(self, name: str) -> list[VersionInfo]:
        """Every version of a model, in no order.

        Raises:
            NotFound: there is no such model, or it has no versions.
        """
        quoted = name.replace("'", "\\'")
        pages = self._pages("/model-versions/search", filter=f"name='{quoted}'")
        found = [_info(one) for page in pages for one in page.get("model_versions", [])]
        if not found:
            raise _no_versions(name)
        return found

    def aliases(self, name: str) -> dict[str, int]:
        """A model's aliases, and the versions they name; none where there is no such model."""
        said = self._ask("GET", "/registered-models/get", params={"name": name})
        return _aliases((said or {}).get("registered_model", {}))

    def newest_of(self, name: str) -> VersionInfo:
        """A model's version with the highest number.

        Raises:
            NotFound: there is no such model, or it has no versions.
        """
        said = self._ask("GET", "/registered-models/get", params={"name": name})
        versions = _latest((said or {}).get("registered_model", {}))
        if not versions:
            raise _no_versions(name)
        return max(versions, key=lambda info: info.version)

    def tag(self, name: str, version: int, **tags: str) -> None:
        """Sets `shiplift.KEY` tags; values over the registry's limit are cut.

        Raises:
            NotFound: there is no such version.
        """
        for key, value in tags.items():
            body = {"name": name, "version": str(version), "key": f"{TAG}{key}", "value": value[:4900]}
            if self._ask("POST", "/model-versions/set-tag", json=body) is None:
                raise NotFound(f"the registry has no version {version} of model {name!r}", do="It was deleted.")

    # --- files ---

    def read_text(self, run_id: str, path: str) -> str | None:
        """A small text artifact of a run; None where there is none."""
        answer = self._send("GET", "/get-artifact", params={"run_uuid": run_id, "path": path})
        if answer.status_code == 404:
            return None
        if answer.is_error:
            raise unreachable(f"artifact {path!r} of run {run_id}", f"it answered {answer.status_code}")
        return answer.content.decode(errors="replace")

    # --- webhooks ---

    def ensure_webhook(self, name: str, url: str, secret: str, *, renew: bool) -> None:
        """Makes the webhook that announces new versions; `renew` sends address and secret to one that is there."""
        body = {"name": name, "url": url, "events": [_VERSION_CREATED], "secret": secret}
        there = self._webhook(name)
        if there is None:
            self._ask("POST", "/webhooks", json=body)
        elif renew or there.get("url") != url:
            self._ask("PATCH", f"/webhooks/{there['webhook_id']}", json=body)

    def _webhook(self, name: str) -> dict[str, Any] | None:
        pages = self._pages("/webhooks")
        return next((one for page in pages for one in page.get("webhooks", []) if one.get("name") == name), None)

    # --- requests ---

    def _version(self, name: str, version: int) -> dict[str, Any] | None:
        return self._ask("GET", "/model-versions/get", params={"name": name, "version": str(version)})

    def _models(self) -> Iterator[dict[str, Any]]:
        for page in self._pages("/registered-models/search"):
            yield from page.get("registered_models", [])

    def _pages(self, path: str, **query: str) -> Iterator[dict[str, Any]]:
        token = ""
        while True:
            where = {"page_token": token} if token else {}
            page = self._ask("GET", path, params={"max_results": str(_PAGE), **query, **where}) or {}
            yield page
            token = str(page.get("next_page_token") or "")
            if not token:
                return

    def _ask(self, method: str, path: str, **content: Any) -> dict[str, Any] | None:
        """What the registry says; None: it knows no such thing."""
        answer = self._send(method, _API + path, **content)
        said = _json(answer)
        if answer.status_code == 404 or (answer.status_code == 400 and method == "GET"):
            return None
        why = str(said.get("message", ""))[:300] if isinstance(said, dict) else ""
        if answer.status_code == 400:
            raise UsageError(f"the registry refused {method} {path}: {why}", do="Mend the setting it names.")
        if answer.is_error or not isinstance(said, dict):
            raise unreachable("the registry", f"it answered {answer.status_code} {why}".strip())
        return said

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
        Temporary: the registry does not answer.
    """
    return RestRegistry(uri, timeout_s=timeout_s).has(name, version)


def _trusted() -> ssl.SSLContext | bool:
    """Whose certificates the registry may show.

    Raises:
        UsageError: the file of certificates can't be read.
    """
    if os.environ.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() == "true":
        return False
    file = os.environ.get("MLFLOW_TRACKING_SERVER_CERT_PATH")
    try:
        return ssl.create_default_context(cafile=file) if file else True
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"MLFLOW_TRACKING_SERVER_CERT_PATH: {file} can't be read: {error}", do="Mend it.") from error


def _no_versions(name: str) -> NotFound:
    return NotFound(f"the registry has no versions of model {name!r}", do="Register one, or mend the name.")


def _latest(model: dict[str, Any]) -> list[VersionInfo]:
    return [_info(one) for one in model.get("latest_versions", [])]


def _aliases(model: dict[str, Any]) -> dict[str, int]:
    try:
        return {str(one["alias"]): int(one["version"]) for one in model.get("aliases", [])}
    except (KeyError, TypeError, ValueError) as error:
        raise Temporary(f"the registry gave an odd alias: {error!r}", do="Check MLFLOW_TRACKING_URI.") from error


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        return None  # a proxy's page, say


def _info(said: Any) -> VersionInfo:
    try:
        return VersionInfo(
            name=str(said["name"]),
            version=int(said["version"]),
            source=str(said.get("source", "")),
            run_id=str(said.get("run_id", "")),
            created_at=int(said.get("creation_timestamp", 0)) / 1000,
            tags={str(tag["key"]): str(tag.get("value", "")) for tag in said.get("tags", [])},
            aliases=tuple(str(alias) for alias in said.get("aliases", []) if isinstance(alias, str)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Temporary(f"the registry gave an odd version: {error!r}", do="Check MLFLOW_TRACKING_URI.") from error
