"""Artifacts by digest: a content-addressed store in a folder, in MLflow, or anywhere fsspec reaches (s3://, gs://).

A blob is stored at `sha256/ab/abcd...`. A tree is a blob too: the JSON manifest of its files. Equal bytes are stored
once, putting twice is harmless, and fetched bytes are verified against their digest. If uploads are not atomic, a
killed one leaves a blob that is too short; such a blob counts as absent.
"""

import gzip
import hashlib
import json
import os
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

import fsspec
from fsspec.core import url_to_fs

from shiplift.runtime.base.errors import ArtifactCorrupt
from shiplift.runtime.base.files import Irregular, TreeFile, open_regular, regular_files
from shiplift.runtime.base.storage import room_for, write_atomically
from shiplift.runtime.records.artifact import Artifact

_CHUNK = 1 << 20
for _protocol in ("mlflow-artifacts", "mlflow-artifacts+https"):  # the class is imported when first used
    fsspec.register_implementation(_protocol, "shiplift.runtime.store.mlflow.filesystem.MlflowArtifacts", clobber=True)


def json_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Rows as gzipped JSON lines; equal rows give equal bytes."""
    return gzip.compress("\n".join(json.dumps(row, sort_keys=True) for row in rows).encode(), mtime=0)


class ArtifactStore:
    """A store at `uri`, for example `file:///var/lib/shiplift/artifacts` or `s3://bucket/shiplift`."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._fs, self._root = url_to_fs(uri)
        self._local = isinstance(self._fs, fsspec.get_filesystem_class("file"))

    def put_file(self, path: Path) -> Artifact:
        """Stores one file.

        Raises:
            StorageFull: no space is left.
        """
        sha256, size = digest(path)
        self._put_file(path, sha256, size)
        return Artifact(sha256=sha256, size_bytes=size, uri=self._at(sha256))

    def put_bytes(self, body: bytes) -> Artifact:
        """Stores `body`; see `put_file`."""
        sha256 = hashlib.sha256(body).hexdigest()
        self._put(sha256, len(body), f"artifact {sha256[:12]}", lambda at: self._fs.pipe_file(at, body))
        return Artifact(sha256=sha256, size_bytes=len(body), uri=self._at(sha256))

    def put_tree(self, folder: Path) -> Artifact:
        """Stores every regular file below `folder`. Anything else, such as a link, is refused.

        Raises:
            ArtifactCorrupt: the tree has other entries, or exceeds the limits of `regular_files`.
            StorageFull: no space is left.
        """
        files: dict[str, tuple[str, int]] = {}
        for file in _listed(folder):
            sha256, size = digest(file.path)
            self._put_file(file.path, sha256, size)
            files[file.name] = sha256, size
        manifest = self.put_bytes(_manifest(files))
        total = sum(size for _, size in files.values())
        return manifest.model_copy(update={"kind": "tree", "size_bytes": total})

    def fetch(self, artifact: Artifact, to: Path) -> Path:
        """Copies a file to the path `to`, or a tree into the folder `to`, and verifies every byte.

        Raises:
            ArtifactCorrupt: bytes are missing or differ from their digest, or a tree names a path outside itself.
            StorageFull: no space is left.
        """
        if artifact.kind == "file":
            self._copy(artifact.sha256, to)
            return to
        to.mkdir(parents=True, exist_ok=True)
        for name, sha256 in self.manifest(artifact).items():
            self._copy(sha256, to / name)
        return to

    def read(self, artifact: Artifact) -> bytes:
        """The bytes of a file artifact, verified.

        Raises:
            ArtifactCorrupt: bytes are missing or differ from their digest.
        """
        body = self._fs.cat_file(self._existing(artifact.sha256))
        if hashlib.sha256(body).hexdigest() != artifact.sha256:
            raise _corrupt(artifact.sha256)
        return bytes(body)

    def read_from_tree(self, tree: Artifact, name: str) -> bytes:
        """The bytes of one file of a tree, verified.

        Raises:
            ArtifactCorrupt: the tree has no such file, or bytes are missing or altered.
        """
        files = self.manifest(tree)
        if name not in files:
            raise ArtifactCorrupt(f"artifact {tree.sha256[:12]} has no file {name!r}", do="Rerun the release.")
        return self.read(Artifact(sha256=files[name], size_bytes=0))

    def manifest(self, artifact: Artifact) -> dict[str, str]:
        """The digests of a tree's files by relative path.

        Raises:
            ArtifactCorrupt: the manifest is missing, altered, or names a path outside the tree.
        """
        return {name: sha256 for name, (sha256, _) in self._entries(artifact).items()}

    def holds(self, artifact: Artifact) -> bool:
        """Whether all blobs of an artifact are stored, by name and size; `fetch` verifies their bytes."""
        if artifact.kind == "file":
            return self._whole(artifact.sha256, artifact.size_bytes)
        if not self._whole(artifact.sha256, None):
            return False
        try:
            return all(self._whole(sha256, size) for sha256, size in self._entries(artifact).values())
        except ArtifactCorrupt:  # a truncated manifest
            return False

    def blobs(self, prefix: str) -> dict[str, int | None]:
        """The sizes in bytes (None: unknown) of all stored files whose digest begins with these two digits."""
        try:
            entries = self._fs.ls(f"{self._root}/sha256/{prefix}", detail=True)
        except FileNotFoundError:
            return {}
        return {
            PurePosixPath(entry["name"]).name: entry.get("size") for entry in entries if entry.get("type") == "file"
        }

    def named(self, name: str) -> bytes | None:
        """The bytes that were last put under a name, unverified; None if there are none."""
        try:
            return bytes(self._fs.cat_file(self._name(name)))
        except FileNotFoundError:
            return None

    def put_named(self, name: str, body: bytes) -> None:
        """Stores bytes under a name (letters and digits), replacing earlier ones.

        Raises:
            StorageFull: no space is left.
        """
        if self._local:
            write_atomically(Path(self._name(name)), body)
        else:
            self._fs.pipe_file(self._name(name), body)

    def _name(self, name: str) -> str:
        return f"{self._root}/named/{name}"

    def _entries(self, artifact: Artifact) -> dict[str, tuple[str, int | None]]:
        """The digest and size of a tree's files by relative path; see `manifest`."""
        try:
            entries = json.loads(self.read(artifact))["files"].items()
            files = {name: (str(entry["sha256"]), _size(entry.get("size_bytes"))) for name, entry in entries}
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ArtifactCorrupt(f"artifact {artifact.sha256[:12]} is not a tree", do="Rerun the release.") from error
        for name in files:
            parts = PurePosixPath(name).parts
            if PurePosixPath(name).is_absolute() or ".." in parts or not parts:
                raise ArtifactCorrupt(
                    f"artifact {artifact.sha256[:12]} names {name!r}, a path outside itself",
                    do="Don't use this artifact.",
                )
        return files

    def _whole(self, sha256: str, size: int | None) -> bool:
        """Whether a blob is stored with its full size; unknown sizes are not compared."""
        try:
            info = self._fs.info(self._at(sha256))
        except FileNotFoundError:
            return False
        return size is None or info.get("size") in (None, size)

    def _put_file(self, path: Path, sha256: str, size: int) -> None:
        self._put(sha256, size, path.name, lambda at: self._fs.put_file(str(path), at))

    def _put(self, sha256: str, size: int, label: str, write: Callable[[str], None]) -> None:
        if self._whole(sha256, size):
            return
        with room_for(label, Path(self._root)):
            partial = self._partial(sha256)
            try:
                write(partial)
            except BaseException:
                if self._local:  # elsewhere the partial has the blob's own name, and may be another writer's
                    Path(partial).unlink(missing_ok=True)
                raise
            self._settle(partial, sha256)

    def _copy(self, sha256: str, to: Path) -> None:
        hasher = hashlib.sha256()
        to.parent.mkdir(parents=True, exist_ok=True)
        with room_for(to.name, to.parent), self._fs.open(self._existing(sha256), "rb") as source, to.open("wb") as out:
            _copy_stream(source, out, hasher)
        if hasher.hexdigest() != sha256:
            to.unlink()
            raise _corrupt(sha256)

    def _existing(self, sha256: str) -> str:
        at = self._at(sha256)
        if not self._whole(sha256, None):
            raise ArtifactCorrupt(f"artifact {sha256[:12]} is not in {self.uri}", do="Rerun the release that made it.")
        return at

    def _at(self, sha256: str) -> str:
        return f"{self._root}/sha256/{sha256[:2]}/{sha256}"

    def _partial(self, sha256: str) -> str:
        """Where to write a blob first. A local file appears by rename; an object store's put is atomic."""
        if not self._local:
            return self._at(sha256)
        Path(self._at(sha256)).parent.mkdir(parents=True, exist_ok=True)
        return f"{self._at(sha256)}.{uuid.uuid4().hex}"

    def _settle(self, partial: str, sha256: str) -> None:
        if self._local:
            Path(partial).replace(self._at(sha256))


def digest(path: Path) -> tuple[str, int]:
    """The SHA-256 of a file, read in chunks, and its size in bytes.

    Raises:
        Irregular: it is not a regular file.
    """
    with open_regular(path) as file:
        return hashlib.file_digest(cast("Any", file), "sha256").hexdigest(), os.fstat(file.fileno()).st_size


def tree_digest(folder: Path) -> str:
    """The digest under which `put_tree` stores a folder.

    Raises:
        ArtifactCorrupt: as `put_tree` does.
    """
    return hashlib.sha256(_manifest({file.name: digest(file.path) for file in _listed(folder)})).hexdigest()


def _listed(folder: Path) -> list[TreeFile]:
    try:
        return regular_files(folder)
    except Irregular as error:
        raise ArtifactCorrupt(f"the files can't be stored: {error}", do="Store plain files and folders.") from error


def _manifest(files: Mapping[str, tuple[str, int]]) -> bytes:
    entries = {name: {"sha256": sha256, "size_bytes": size} for name, (sha256, size) in files.items()}
    return json.dumps({"files": entries}, sort_keys=True).encode()


def _size(value: Any) -> int | None:
    return None if value is None else int(value)


def _copy_stream(source: BinaryIO, out: BinaryIO, hasher: Any) -> None:
    while chunk := source.read(_CHUNK):
        hasher.update(chunk)
        out.write(chunk)


def _corrupt(sha256: str) -> ArtifactCorrupt:
    return ArtifactCorrupt(
        f"artifact {sha256[:12]} has bytes that do not match its digest", do="Delete it and rerun the release."
    )
