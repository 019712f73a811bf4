"""The files of the model version that a pod works on, fetched once for all of its stages."""

import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from shiplift.runtime.records.request import Request
from shiplift.runtime.records.site import Site
from shiplift.runtime.store.registry.client import Registry
from shiplift.runtime.store.registry.terms import VersionInfo


@dataclass
class VersionFolder:
    """The version that is released; its files are fetched into `folder`."""

    site: Site
    request: Request
    folder: Path
    registry: Registry

    @cached_property
    def info(self) -> VersionInfo:
        """The version in the registry."""
        return self.registry.version(self.request.model, self.request.version)

    @cached_property
    def run_id(self) -> str:
        """The run that holds its history."""
        return self.registry.run_of(self.info)

    @cached_property
    def model(self) -> Path:
        """The folder with its files."""
        limit_mb = self.site.policy.max_size_mb
        return self.registry.download_model(self.info, self.folder / "model", limit_mb=limit_mb)

    def files(self) -> list[str]:
        """The names of its files. A registry stores only regular ones."""
        return [path.relative_to(self.model).as_posix() for path in sorted(self.model.rglob("*")) if path.is_file()]

    def run_file(self, path: str) -> Path:
        """An artifact of its run."""
        to = Path(tempfile.mkdtemp(dir=self.folder))
        file = self.registry.download_run_file(self.run_id, path, to)
        if file is None:
            raise FileNotFoundError(path)
        return file
