"""The artifacts that an MLflow server keeps, which MLflow calls proxied artifact access.

This is the part of the protocol that Shiplift uses, for the files of versions and runs and for the artifact store. The
operator's copies of packages and a pod's broker speak it too.
"""

import posixpath
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from shiplift.runtime.base.errors import Temporary
from shiplift.runtime.store.mlflow.connection import Connection
from shiplift.runtime.store.mlflow.failures import refused

API = "/api/2.0/mlflow-artifacts/artifacts"
SCHEME = "mlflow-artifacts"


@dataclass(frozen=True, kw_only=True)
class ArtifactEntry:
    """A file or folder: its path from the root of the artifacts, and its size in bytes if known."""

    path: str
    is_dir: bool
    file_size: int | None


@dataclass(frozen=True)
class ArtifactProxy:
    """A server's files, by their paths.

    Every method raises `Temporary` if the server does not respond or its response is malformed, and `RegistryDenied` if
    it wants other credentials.
    """

    connection: Connection

    def list(self, folder: str) -> list[ArtifactEntry]:
        """The files and folders directly below a path; empty if there are none."""
        response = self.connection.send("GET", API, params={"path": folder} if folder else {})
        if response.status_code == 404:
            return []
        self._checked(response, folder)
        try:
            return [_entry(folder, body) for body in response.json().get("files", [])]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Temporary(
                f"{self.connection.server} sent a malformed list of artifacts: {error!r}",
                do="Check MLFLOW_TRACKING_URI.",
            ) from error

    def read(self, path: str) -> bytes:
        """The bytes of a file.

        Raises:
            FileNotFoundError: there is no such file.
        """
        return self._checked(self.connection.send("GET", _address(path)), path).content

    def open(self, path: str) -> httpx.Response:
        """A response with the bytes of a file, unread; see `Connection.open`. Raises what `read` raises."""
        return self._checked(self.connection.open(_address(path)), path)

    def download(self, path: str, to: Path) -> None:
        """Writes a file to the local path `to`. Raises what `read` raises."""
        self._checked(self.connection.download(_address(path), to), path)

    def write(self, path: str, body: bytes) -> None:
        """Writes or replaces a file."""
        self._checked(self.connection.send("PUT", _address(path), content=body), path)

    def upload(self, path: str, file: Path) -> None:
        """Writes or replaces a file with the bytes of a local one."""
        self._checked(self.connection.upload(_address(path), file), path)

    def remove(self, path: str) -> None:
        """Removes a file. Raises what `read` raises."""
        self._checked(self.connection.send("DELETE", _address(path)), path)

    def _checked(self, response: httpx.Response, path: str) -> httpx.Response:
        status = response.status_code
        if status == 404:
            raise FileNotFoundError(path)
        if not response.is_success:
            cause = f"it answered {status}"
            raise refused(f"artifact {path[-80:]!r}", status, cause, server=self.connection.server)
        return response


def _address(path: str) -> str:
    return f"{API}/{quote(path)}"


def _entry(folder: str, body: Any) -> ArtifactEntry:
    size = body.get("file_size")
    return ArtifactEntry(
        path=posixpath.join(folder, posixpath.basename(str(body["path"]))),
        is_dir=bool(body.get("is_dir")),
        file_size=None if size is None else int(size),
    )
