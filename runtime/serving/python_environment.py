"""The environments of Python models where they are served: made again on a machine that lacks one."""

from shiplift.runtime.model.python.environments import ensure
from shiplift.runtime.records.serving import Package
from shiplift.runtime.records.site import Site


def prepare(site: Site, package: Package) -> None:
    """Makes the environment of a package's Python model, if it has one and this machine does not have it yet.

    Raises:
        NotAdmitted, Temporary, NotConfined: it can't be made (`environments.ensure`).
    """
    if package.environment:
        ensure(site, package.environment)
