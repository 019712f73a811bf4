"""What a stage without secrets may ask its broker for: its version's files, its artifacts, its record, tuning results.

Each request is checked against the stage's own arguments, which the Workflow gives to the broker directly. No file is
parsed here, because an author may have written it. Each stage of a pod has its own permissions: see `pod_permissions`.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from shiplift.pipelines.engines.argo.broker.version import VersionFolder
from shiplift.pipelines.engines.cache_key import key
from shiplift.pipelines.graph import Stage
from shiplift.runtime.base.errors import ArtifactCorrupt, NotFound
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.capture.parts import READER
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.request import Request
from shiplift.runtime.records.site import Cluster
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.ledger import Ledger, artifacts_of
from shiplift.runtime.store.tuning_cache import SignedTuningCache

if TYPE_CHECKING:
    from shiplift.runtime.capture.elsewhere import RowsElsewhere

_CAPTURED_S = 60.0


class Denied(Exception):
    """The stage asked for something that it has no right to."""


@dataclass
class StagePermissions:
    """What a stage with these `arguments` may ask for. `on_record` is called once its record is stored.

    `go_on` decides whether the fan-out that follows may run in this pod. If so, it opens the permissions of the first
    stage of the fan-out, and returns the records that the fan-out takes from elsewhere.
    """

    stage: Stage
    arguments: Mapping[str, Any]
    version: VersionFolder
    on_record: Callable[[Record], None] = lambda _: None
    go_on: Callable[[], dict[str, Record] | None] = lambda: None
    _stored: set[str] = field(default_factory=set)

    # --- the version's files ---

    def model_file(self, name: str) -> Path:
        """One of its files."""
        if name not in self.version.files():
            raise FileNotFoundError(name)
        return self.version.model / name

    def run_file(self, run_id: str, path: str) -> Path:
        """An artifact of its run."""
        if run_id != self.version.run_id:
            raise Denied(f"run {run_id} does not belong to this stage's version")
        return self.version.run_file(path)

    def captured_files(self, served: str) -> bytes:
        """The files of what production captured of its model, and their settings, as the keeper answers."""
        self._require_captured(served)
        with self._rows() as rows:
            return rows.files(self._request.model).model_dump_json().encode()

    def captured_file(self, served: str, name: str) -> bytes:
        """One of these files."""
        self._require_captured(served)
        with self._rows() as rows:
            body = rows.file(self._request.model, name)
        if body is None:
            raise FileNotFoundError(name)
        return body

    def _require_captured(self, served: str) -> None:
        if self.stage.name != "admit" or served != serving_name(self._request.model):
            raise Denied(f"this stage may not read what is captured of {served[:80]!r}")

    @contextmanager
    def _rows(self) -> "Iterator[RowsElsewhere]":
        from shiplift.runtime.capture.elsewhere import RowsElsewhere  # noqa: PLC0415 - PyArrow: 0.1 s and 60 MB

        place = self.version.site.place
        uri = place.capture_uri if isinstance(place, Cluster) else ""
        if not uri:
            raise FileNotFoundError("nothing on this cluster keeps what is captured")
        with httpx.Client(base_url=uri, timeout=_CAPTURED_S, trust_env=False) as client:
            yield RowsElsewhere(client, os.environ.get(READER, ""))

    # --- artifacts ---

    def listing(self, prefix: str) -> list[dict[str, Any]]:
        """The sizes of the artifacts whose digests begin with two digits, as the artifact proxy lists them."""
        blobs = self._store.blobs(prefix)
        return [{"path": name, "is_dir": False, "file_size": size} for name, size in blobs.items()]

    def artifact(self, sha256: str) -> Path:
        """The file with this digest, if the stage's records lead to it."""
        if sha256 not in self._named_by_records | self._stored:
            raise Denied(f"none of this stage's records names artifact {sha256[:12]}")
        return self._store.fetch(Artifact(sha256=sha256, size_bytes=0), self._temporary())

    def store(self, sha256: str, file: Path) -> None:
        """Stores a file, if it has this digest."""
        stored = self._store.put_file(file)
        if stored.sha256 != sha256:
            raise ArtifactCorrupt(f"the bytes sent have digest {stored.sha256[:12]}", do="Run the release again.")
        self._stored.add(sha256)

    # --- the stage's record ---

    @cached_property
    def key(self) -> str:
        """The key of the stage's result. The broker computes it itself, so the stage can't write under another key."""
        return key(self.stage, {name: self.arguments[name] for name in self.stage.takes})

    def record(self, stage: str, name: str) -> bytes:
        """The stage's stored record."""
        self._require_own(stage, name)
        record = self._ledger.get(name, stage, self.stage.gives)
        if record is None:
            raise FileNotFoundError(name)
        self.on_record(record)
        return record.model_dump_json().encode()

    def put_record(self, stage: str, name: str, body: bytes) -> None:
        """Signs and stores the stage's record."""
        self._require_own(stage, name)
        record = self.stage.gives.model_validate_json(body)
        missing = [artifact.sha256[:12] for artifact in artifacts_of(record) if not self._store.holds(artifact)]
        if missing:
            raise ArtifactCorrupt(f"the record names artifacts that are not stored: {', '.join(missing)}", do="Rerun.")
        self._ledger.put(name, stage, record)
        self.on_record(record)

    def _require_own(self, stage: str, name: str) -> None:
        if (stage, name) != (self.stage.name, self.key):
            raise Denied(f"{stage}-{name[:12]} is not this stage's record")

    def explanation(self, what: str, do: str) -> dict[str, str]:
        """A clearer error than this one, if the version was deleted during its release."""
        error = self._ledger.explain(NotFound(what, do=do))
        return {"what": error.what, "do": error.do}

    # --- the tuning cache ---

    def tuned(self, name: str) -> bytes:
        """The files stored under a name for this model."""
        tree = self._tuning_cache.known(self._named(name))
        if tree is None:
            raise FileNotFoundError(name)
        self._stored |= self._reached(tree)
        return tree.model_dump_json().encode()

    def put_tuned(self, name: str, body: bytes) -> None:
        """Stores files under a name, but only for later versions of this model: its author may have chosen them."""
        self._tuning_cache.keep(self._named(name), Artifact.model_validate_json(body))

    def _named(self, name: str) -> str:
        return f"{self._request.model}: {name}"

    # --- helpers ---

    @cached_property
    def _named_by_records(self) -> set[str]:
        return {sha256 for value in self.arguments.values() for sha256 in self._reached(value)}

    def _reached(self, value: Any) -> set[str]:
        """The digests of all artifacts that a record names, and of the files in those that are trees."""
        named = list(artifacts_of(value))
        trees = (self._store.manifest(artifact).values() for artifact in named if artifact.kind == "tree")
        return {artifact.sha256 for artifact in named}.union(*trees)

    def _temporary(self) -> Path:
        handle, name = tempfile.mkstemp(dir=self.version.folder)
        os.close(handle)
        return Path(name)

    @property
    def _request(self) -> Request:
        return self.version.request

    @cached_property
    def _store(self) -> ArtifactStore:
        return ArtifactStore(self.version.site.artifacts_uri)

    @cached_property
    def _tuning_cache(self) -> SignedTuningCache:
        return SignedTuningCache(self.version.site)

    @cached_property
    def _ledger(self) -> Ledger:
        return Ledger(self.version.site, self._request, registry=self.version.registry)
