"""A copy of the packages that serve now, so that their pods can restart while the artifact store is unreachable.

It is a folder with the layout of an `ArtifactStore`. Packages that no longer serve are deleted from it. Every byte is
verified when it is put there, and again when it is fetched.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path

from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.store.artifacts import ArtifactStore


class PackageCache:
    """A copy of packages in `folder`, at most `most_bytes` in total."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self.folder = folder
        self._most_bytes = most_bytes
        self._store = ArtifactStore(folder.as_uri())

    @property
    def uri(self) -> str:
        """The address of the copy as an `ArtifactStore`, for this process."""
        return self._store.uri

    def keep(self, packages: Mapping[str, str]) -> dict[str, str]:
        """Copies what is missing of these packages, and deletes everything else.

        `packages` are the addresses of artifact stores, by the digest of the package. Returns a sentence, by digest,
        for each package that could not be copied.
        """
        present = {digest for digest in packages if self._store.holds(_tree(digest))}
        self._drop({blob for digest in present for blob in self._blobs(digest)})
        problems = {}
        for digest in sorted(packages.keys() - present):
            try:
                self._copy(digest, packages[digest])
            except (ShipliftError, OSError) as error:
                problems[digest] = str(error)
        return problems

    def _copy(self, digest: str, uri: str) -> None:
        """Copies a package. Its list of files comes last, so that a killed copy counts as absent."""
        origin = ArtifactStore(uri)
        listing = origin.read(_file(digest))
        with tempfile.TemporaryDirectory(dir=self.folder, prefix="incoming-") as folder:
            package = origin.fetch(_tree(digest), Path(folder) / "package")
            files = [file for file in package.rglob("*") if file.is_file()]
            size, used = sum(file.stat().st_size for file in files), self._used()
            if used + size > self._most_bytes:
                raise OSError(
                    f"the package has {size >> 20} MiB, and {used >> 20} of {self._most_bytes >> 20} MiB are in use. "
                    "Raise `operator.packages_gb` in the values."
                )
            for file in files:
                self._store.put_file(file)
        self._store.put_bytes(listing)

    def _blobs(self, digest: str) -> set[str]:
        return {digest, *self._store.manifest(_tree(digest)).values()}

    def _used(self) -> int:
        return sum(file.stat().st_size for file in self._files())

    def _drop(self, kept: set[str]) -> None:
        for file in self._files():
            if file.name not in kept:
                file.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        return [file for file in (self.folder / "sha256").glob("*/*") if file.is_file()]


def _tree(digest: str) -> Artifact:
    return Artifact(sha256=digest, size_bytes=0, kind="tree")


def _file(digest: str) -> Artifact:
    return Artifact(sha256=digest, size_bytes=0)
