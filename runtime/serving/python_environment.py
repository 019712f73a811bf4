"""Makes or unpacks the environments of packages' Python code on the machines that serve them."""

from pathlib import Path

from shiplift.runtime.model.python.environments import ensure, root_of
from shiplift.runtime.model.python.layers import name_of, unpack_all
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.site import Site


def prepare(site: Site, package: Package, tree: Path | None = None) -> None:
    """Makes the environment of a package's Python code, if it has one that this machine lacks.

    `tree` is the fetched package; it contains the environment if it was made on a cluster, or if it has a front for
    NVIDIA's server.

    Raises:
        NotAdmitted, Temporary, NotConfined, ArtifactCorrupt, StorageFull: it can't be made (`environments.ensure`).
    """
    if environment := package.python_environment:
        layer = tree / name_of(environment.digest) if tree else None
        ensure(site, environment, layer if layer and layer.is_file() else None)
    elif tree:
        unpack_all(tree, root_of(site))
