"""The registry over its REST API, for processes too small to import MLflow, or too far away to reach it directly.

The receiver and the reconciler run for months in a few dozen megabytes, and a git push's pod should start at once. They
only read versions and their tags, set tags, and register the webhook. The command line reaches a cluster's registry
through `transport`. Here, too, a registry that does not respond raises `Temporary`.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from shiplift.runtime.base.errors import NotFound, Temporary
from shiplift.runtime.base.text import printable
from shiplift.runtime.store.mlflow.connection import Connection
from shiplift.runtime.store.mlflow.failures import refused
from shiplift.runtime.store.mlflow.settings import read_settings
from shiplift.runtime.store.registry.registering import register
from shiplift.runtime.store.registry.session import Session
from shiplift.runtime.store.registry.terms import TAG, VersionInfo, version_info

PATIENT_S = math.inf  # waits as long as the settings allow: for background work, and for pages over a thousand models
_PAGE = 200
_VERSION_CREATED = {"entity": "MODEL_VERSION", "action": "CREATED"}


class RestRegistry:
    """A model registry at `uri`.

    Every method raises `Temporary` if the registry can't be reached or its answer is malformed, and `RegistryDenied` if
    it wants other credentials.
    """

    def __init__(
        self,
        uri: str,
        *,
        timeout_s: float = 5,
        transport: httpx.BaseTransport | None = None,
        session: Session | None = None,
    ) -> None:
        """`timeout_s` is the most that the caller waits; `session` is a shared one with its own settings.

        Without a session, a request is sent once: its callers retry by themselves.
        """
        self._session = session or Session(
            Connection(uri, settings=read_settings().within(timeout_s), transport=transport)
        )

    # --- versions ---

    def version(self, name: str, version: int) -> VersionInfo | None:
        """A version as it is now, or None if it does not exist."""
        body = self._version(name, version)
        return version_info(body["model_version"]) if body else None

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
        pages = self._session.pages("/model-versions/search", filter=f"name='{quoted}'")
        versions = [version_info(body) for page in pages for body in page.get("model_versions", [])]
        if not versions:
            raise _no_versions(name)
        return versions

    def tagged(self, tag: str, value: str = "") -> list[VersionInfo]:
        """Every version that has a tag with this value (empty: any), in no particular order."""
        condition = f"= '{value}'" if value else "LIKE '%'"
        pages = self._session.pages("/model-versions/search", filter=f"tags.`{tag}` {condition}")
        return [version_info(body) for page in pages for body in page.get("model_versions", [])]

    def recent(self, name: str = "") -> list[VersionInfo]:
        """The newest versions of a model, or of all models, newest first: at most 200 of them."""
        quoted = name.replace("'", "\\'")
        chosen = {"filter": f"name='{quoted}'"} if name else {}
        query = {"max_results": str(_PAGE), "order_by": "creation_timestamp DESC", **chosen}
        body = self._session.ask("GET", "/model-versions/search", params=query) or {}
        return [version_info(version) for version in body.get("model_versions", [])]

    def aliases(self, name: str) -> dict[str, int]:
        """A model's aliases and the versions they point at; empty if the model does not exist."""
        body = self._session.ask("GET", "/registered-models/get", params={"name": name})
        return _aliases((body or {}).get("registered_model", {}))

    def newest_of(self, name: str) -> VersionInfo:
        """A model's version with the highest number.

        Raises:
            NotFound: the model does not exist, or has no versions.
        """
        body = self._session.ask("GET", "/registered-models/get", params={"name": name})
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
            if self._session.ask("POST", "/model-versions/set-tag", json=body) is None:
                raise NotFound(
                    f"the registry has no version {version} of model {name!r}",
                    do="It was probably deleted; register it again if it should be released.",
                )

    def untag(self, name: str, version: int, key: str) -> None:
        """Removes a tag; one that is not there, or of a version that is gone, is no error."""
        body = {"name": name, "version": str(version), "key": key}
        self._session.ask("DELETE", "/model-versions/delete-tag", json=body)

    def describe(self, name: str, version: int, description: str) -> None:
        """Replaces a version's description.

        Raises:
            NotFound: the version does not exist.
        """
        body = {"name": name, "version": str(version), "description": description}
        if self._session.ask("PATCH", "/model-versions/update", json=body) is None:
            raise NotFound(
                f"the registry has no version {version} of model {name!r}",
                do="It was probably deleted; register it again if it should be released.",
            )

    def set_alias(self, name: str, alias: str, version: int) -> None:
        """Points an alias at a version; 0 removes it.

        Raises:
            NotFound: the version does not exist.
        """
        body = {"name": name, "alias": alias} | ({"version": str(version)} if version else {})
        answer = self._session.ask("POST" if version else "DELETE", "/registered-models/alias", json=body)
        if answer is None and version:
            raise NotFound(
                f"the registry has no version {version} of model {name!r}", do="Check the name in the registry."
            )

    def register(self, name: str, files: Mapping[str, bytes], tags: Mapping[str, str]) -> VersionInfo:
        """Registers the next version of a model from files. Raises what `registering.register` raises."""
        return register(self._session, name, files, tags)

    # --- files ---

    def read_text(self, run_id: str, path: str) -> str | None:
        """A small text artifact of a run; None if there is none."""
        answer = self._session.connection.send("GET", "/get-artifact", params={"run_uuid": run_id, "path": path})
        if answer.status_code == 404:
            return None
        if answer.is_error:
            status = answer.status_code
            raise refused(f"artifact {path!r} of run {run_id}", status, f"it answered {status}")
        return answer.content.decode(errors="replace")

    # --- webhooks ---

    def ensure_webhook(self, name: str, url: str, secret: str, *, renew: bool, description: str = "") -> None:
        """Creates the webhook that announces new versions. `renew` updates and enables an existing one."""
        body = {"name": name, "url": url, "events": [_VERSION_CREATED], "secret": secret, "description": description}
        existing = self.webhook(name)
        if existing is None:
            self._session.ask("POST", "/webhooks", json=body)
        elif renew or existing.get("url") != url:
            self._session.ask("PATCH", f"/webhooks/{existing['webhook_id']}", json={**body, "status": "ACTIVE"})
        elif existing.get("description", "") != description:
            self.describe_webhook(name, description)

    def describe_webhook(self, name: str, description: str) -> None:
        """Changes the description of a webhook, if it exists."""
        existing = self.webhook(name)
        if existing is not None:
            self._session.ask("PATCH", f"/webhooks/{existing['webhook_id']}", json={"description": description})

    def webhook(self, name: str) -> dict[str, Any] | None:
        """A webhook by its name, without its secret; None if there is none."""
        pages = self._session.pages("/webhooks")
        return next((hook for page in pages for hook in page.get("webhooks", []) if hook.get("name") == name), None)

    def _version(self, name: str, version: int) -> dict[str, Any] | None:
        return self._session.ask("GET", "/model-versions/get", params={"name": name, "version": str(version)})

    def _models(self) -> Iterator[dict[str, Any]]:
        for page in self._session.pages("/registered-models/search"):
            yield from page.get("registered_models", [])


def newest_tagged(registry: RestRegistry, name: str, tag: str, value: str) -> int:
    """The newest version of a model whose tag has this value; 0 if there is none."""
    try:
        versions = registry.versions(name)
    except NotFound:
        return 0
    return max((info.version for info in versions if info.tags.get(tag) == value), default=0)


def _no_versions(name: str) -> NotFound:
    return NotFound(f"the registry has no versions of model {name!r}", do="Register one, or fix the name.")


def _latest(model: dict[str, Any]) -> list[VersionInfo]:
    return [version_info(body) for body in model.get("latest_versions", [])]


def _aliases(model: dict[str, Any]) -> dict[str, int]:
    try:
        return {str(entry["alias"]): int(entry["version"]) for entry in model.get("aliases", [])}
    except (KeyError, TypeError, ValueError) as error:
        raise Temporary(f"the registry sent a malformed alias: {error!r}", do="Check MLFLOW_TRACKING_URI.") from error
