"""A version and its files, for admission: from the registry or, in a pod without credentials, from its broker."""

from pathlib import Path, PurePosixPath
from typing import Protocol

from shiplift.runtime.base.errors import NotFound
from shiplift.runtime.store.broker import Broker, is_brokered
from shiplift.runtime.store.registry.client import Registry
from shiplift.runtime.store.registry.terms import VersionInfo


class VersionFiles(Protocol):
    """What admission needs from a registry; see `Registry` for each method."""

    def version(self, name: str, version: int) -> VersionInfo:
        """A version, as it is now."""

    def run_of(self, info: VersionInfo) -> str:
        """The run that holds a version's history."""

    def download_model(self, info: VersionInfo, to: Path, *, limit_mb: float) -> Path:
        """Downloads every file of a version into the folder `to`, unless they are larger than the limit."""

    def download_run_file(self, run_id: str, path: str, to: Path) -> Path | None:
        """Downloads one artifact of a run into the folder `to`; None if there is no such artifact."""


def version_files(uri: str) -> VersionFiles:
    """The registry at `uri`, or the broker."""
    return BrokeredFiles(Broker(uri)) if is_brokered(uri) else Registry(uri)


class BrokeredFiles:
    """The files of the one version that the pod's stage handles."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def version(self, name: str, version: int) -> VersionInfo:
        """See `VersionFiles`.

        Raises:
            NotFound: the broker serves another version.
        """
        answer = self._broker.ask("GET", "/version")
        info = VersionInfo(**answer.json()) if answer is not None else None
        if info is None or (info.name, info.version) != (name, version):
            raise NotFound(f"the registry has no version {version} of model {name!r}", do="Check the name.")
        return info

    def run_of(self, info: VersionInfo) -> str:
        """See `VersionFiles`."""
        self.version(info.name, info.version)
        answer = self._broker.ask("GET", "/run")
        return answer.text if answer is not None else ""

    def download_model(self, info: VersionInfo, to: Path, *, limit_mb: float) -> Path:  # noqa: ARG002 - the broker's
        """See `VersionFiles`. The broker, which downloads the files and knows the site's policy, enforces the limit."""
        self.version(info.name, info.version)
        answer = self._broker.ask("GET", "/model")
        to.mkdir(parents=True, exist_ok=True)
        for name in answer.json() if answer is not None else ():
            self._broker.download("/model/file", to / name, name=name)
        return to

    def download_run_file(self, run_id: str, path: str, to: Path) -> Path | None:
        """See `VersionFiles`."""
        file = to / PurePosixPath(path).name
        return file if self._broker.download("/run/file", file, run=run_id, path=path) else None
