"""Artifacts of versions and runs that the registry's own server keeps.

MLflow's own client handles artifacts anywhere else, such as a bucket that clients write to directly.
"""

import posixpath
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from shiplift.runtime.base.errors import NotFound
from shiplift.runtime.store.mlflow.artifact_proxy import SCHEME, ArtifactEntry, ArtifactProxy


@dataclass(frozen=True)
class ProxiedArtifacts:
    """The artifacts below `root`, a path on the server. Implements `downloads.Artifacts`."""

    proxy: ArtifactProxy
    root: str

    def list_artifacts(self, path: str | None) -> list[ArtifactEntry]:
        """The files and folders directly below a path, with paths from the root; empty if there are none.

        Raises:
            Temporary, RegistryDenied: as for every request to the registry.
        """
        entries = self.proxy.list(self._at(path or ""))
        return [replace(entry, path=posixpath.join(path or "", posixpath.basename(entry.path))) for entry in entries]

    def _download_file(self, remote_file_path: str, local_path: str) -> None:
        with _found(remote_file_path):
            self.proxy.download(self._at(remote_file_path), Path(local_path))

    def write(self, path: str, body: bytes) -> None:
        """Writes or replaces a file."""
        with _found(path):
            self.proxy.write(self._at(path), body)

    def _at(self, path: str) -> str:
        return posixpath.join(self.root, path) if path else self.root


def root_of(uri: str) -> str | None:
    """The path on the registry's own server that a URI names; None if it names something else."""
    parts = urlsplit(uri)
    return unquote(parts.path).strip("/") if parts.scheme == SCHEME and not parts.netloc else None


@contextmanager
def _found(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound(f"the registry has no artifact {path!r}", do="Log it again.") from error
