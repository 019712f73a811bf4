"""What one version's release measures for the next: layer sensitivities, kernel timings, the best configurations.

Entries are in the artifact store, because a pod starts with an empty home. Each has a name for the things that it is
true of (a graph's digest, a GPU). A name says nothing about the bytes, so an entry is signed: writers to the store must
not choose what a builder loads. The cache only saves time: work continues without an entry that can't be read.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.base.secrets import load_secrets, sign, signed_by
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.site import Site
from shiplift.runtime.store.artifacts import ArtifactStore, digest
from shiplift.runtime.store.broker import Broker, is_brokered


class TuningCache(Protocol):
    """Stores trees of files under names."""

    def known(self, name: str) -> Artifact | None:
        """The files stored under a name, or None."""

    def keep(self, name: str, tree: Artifact) -> None:
        """Stores files under a name."""


class SignedTuningCache:
    """Entries in the artifact store, signed with the site's key."""

    def __init__(self, site: Site) -> None:
        self._store = ArtifactStore(site.artifacts_uri)
        self._secret = load_secrets(Path(site.home)).ledger

    def known(self, name: str) -> Artifact | None:
        """The files stored under a name; None if there are none, or the entry is not genuine."""
        body = self._store.named(_digest(name))
        try:
            entry = json.loads(body) if body else {}
            tree, signature = str(entry["tree"]), str(entry["signature"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        genuine = signed_by(self._secret, signature, name, tree)
        return Artifact(sha256=tree, size_bytes=0, kind="tree") if genuine else None

    def keep(self, name: str, tree: Artifact) -> None:
        """Stores files under a name."""
        entry = {"tree": tree.sha256, "signature": sign(self._secret, name, tree.sha256)}
        self._store.put_named(_digest(name), json.dumps(entry).encode())


@contextmanager
def tuning_cache(site: Site, name: str, folder: Path) -> Iterator[Path]:
    """Yields `folder` with the files stored under a name, and stores the changed files afterwards.

    If two processes do so at the same time, the later one wins.
    """
    store = ArtifactStore(site.artifacts_uri)
    cache: TuningCache = Broker(site.registry_uri) if is_brokered(site.registry_uri) else SignedTuningCache(site)
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(ShipliftError):
        if known := cache.known(name):
            store.fetch(known, folder)
    before = _digests(folder)
    yield folder
    if _digests(folder) != before:
        with contextlib.suppress(ShipliftError):
            cache.keep(name, store.put_tree(folder))


def _digests(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): digest(path)[0] for path in folder.rglob("*") if path.is_file()}


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()
