"""The environments of a package's Python where it is served: made again, or unpacked, on a machine that lacks one."""

from pathlib import Path

from shiplift.runtime.model.python.environments import ensure, root_of
from shiplift.runtime.model.python.layers import name_of, unpack_all
from shiplift.runtime.records.serving import Package
from shiplift.runtime.records.site import Site


def prepare(site: Site, package: Package, tree: Path | None = None) -> None:
    """Makes the environment of a package's Python, if it has one and this machine does not have it yet.

    `tree` is the package, fetched; a package that was made on a cluster has the environment in it, and fronts for
    NVIDIA's server have theirs in any case.

    Raises:
        NotAdmitted, Temporary, NotConfined, ArtifactCorrupt, StorageFull: it can't be made (`environments.ensure`).
    """
    if environment := package.python_environment:
        layer = tree / name_of(environment.digest) if tree else None
        ensure(site, environment, layer if layer and layer.is_file() else None)
    elif tree:
        unpack_all(tree, root_of(site))
