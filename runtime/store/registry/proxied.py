"""Artifacts that the registry's own server keeps: what MLflow calls proxied artifact access.

It is the part of MLflow's artifact repositories that is used here. Artifacts anywhere else, such as a bucket that
clients write to directly, are left to MLflow's own client.
"""

import posixpath
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from shiplift.runtime.base.errors import NotFound, Temporary
from shiplift.runtime.store.registry.session import Session
from shiplift.runtime.store.registry.terms import refused

_API = "/api/2.0/mlflow-artifacts/artifacts"
_SCHEME = "mlflow-artifacts"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A file or folder: its path from the root of the artifacts, and its size in bytes if known."""

    path: str
    is_dir: bool
    file_size: int | None


@dataclass(frozen=True)
class ProxiedArtifacts:
    """The artifacts below `root`, a path on the server. Implements `downloads.Artifacts`."""

    session: Session
    root: str

    def list_artifacts(self, path: str | None) -> list[Entry]:
        """The files and folders directly below a path; none if there is nothing.

        Raises:
            Temporary, RegistryDenied: as every request to the registry.
        """
        answer = self.session.send("GET", _API, params={"path": self._at(path or "")})
        if answer.status_code == 404:
            return []
        self._check(answer.status_code, path or "")
        try:
            return [_entry(path or "", body) for body in answer.json().get("files", [])]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Temporary(
                f"the registry sent a malformed list of artifacts: {error!r}", do="Check MLFLOW_TRACKING_URI."
            ) from error

    def _download_file(self, remote_file_path: str, local_path: str) -> None:
        status = self.session.download(self._address(remote_file_path), Path(local_path))
        self._check(status, remote_file_path)

    def write(self, path: str, body: bytes) -> None:
        """Writes or replaces a file."""
        self._check(self.session.send("PUT", self._address(path), content=body).status_code, path)

    def _address(self, path: str) -> str:
        return f"{_API}/{quote(self._at(path))}"

    def _at(self, path: str) -> str:
        return posixpath.join(self.root, path) if path else self.root

    def _check(self, status: int, path: str) -> None:
        if status == 404:
            raise NotFound(f"the registry has no artifact {path!r}", do="Log it again.")
        if not 200 <= status < 300:
            raise refused(f"artifact {path!r}", status, f"it answered {status}")


def root_of(uri: str) -> str | None:
    """The path on the registry's own server that a URI names; None if it names something else."""
    parts = urlsplit(uri)
    return unquote(parts.path).strip("/") if parts.scheme == _SCHEME and not parts.netloc else None


def _entry(folder: str, body: Any) -> Entry:
    size = body.get("file_size")
    return Entry(
        path=posixpath.join(folder, str(body["path"])), is_dir=bool(body.get("is_dir")),
        file_size=None if size is None else int(size),
    )  # fmt: skip
