"""What answers the users' requests, whatever the place: what promotion and rollback may ask of it.

A site's place is one machine or a cluster; a step never knows which. Every place keeps the same promises, and each
method can be killed at any line and called again. Another place is a type in `records.site` and a case in the function
at the end; mypy reports a case that is missing.
"""

from contextlib import AbstractContextManager
from typing import Protocol

from shiplift.runtime.records.serving import Endpoint, Package
from shiplift.runtime.records.site import Cluster, Machine, Site
from shiplift.runtime.spec.serving import Rollout


class Production(Protocol):
    """What answers the users' requests."""

    def lock(self, model: str) -> AbstractContextManager[None]:
        """One promotion or rollback of a model at a time; freed if its holder dies.

        Raises:
            Temporary: another holds it for too long.
        """

    def endpoint(self, model: str) -> Endpoint:
        """Where a model answers."""

    def serves(self, package: Package) -> bool:
        """Whether exactly this package answers every request under its name."""

    def move(self, package: Package, rollout: Rollout) -> None:
        """Makes a package the one that answers under its name.

        Raises:
            GoldenMismatch: it answers wrongly; what answered before still does.
            ServerFailed: Triton can't serve it; what answered before still does.
            CanaryFailed: it failed requests of its share of the traffic; what answered before has all of it again.
        """

    def retire(self, model: str) -> None:
        """Ends what no longer serves, after its last request."""


def production(site: Site) -> Production:
    """The production of a site."""
    match site.place:  # the imports are inside: a client of another place is slow to import
        case Machine() as machine:
            from shiplift.runtime.serving.triton.production import LocalProduction  # noqa: PLC0415

            return LocalProduction(site, machine)
        case Cluster() as cluster:
            from shiplift.runtime.serving.kubernetes.production import ClusterProduction  # noqa: PLC0415

            return ClusterProduction(site, cluster)
