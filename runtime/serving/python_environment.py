"""Makes the environments of Python models on the machines that serve them."""

from pathlib import Path

from shiplift.runtime.model.python.environments import ensure
from shiplift.runtime.model.python.layers import name_of
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.site import Site


def prepare(site: Site, package: Package, tree: Path | None = None) -> None:
    """Makes the environment of a package's Python model, if it has one that this machine lacks.

    `tree` is the fetched package; a package that was made on a cluster contains the environment.

    Raises:
        NotAdmitted, Temporary, NotConfined, ArtifactCorrupt, StorageFull: it can't be made (`environments.ensure`).
    """
    if environment := package.python_environment:
        layer = tree / name_of(environment.digest) if tree else None
        ensure(site, environment, layer if layer and layer.is_file() else None)
