"""What answers users' requests, whatever the place: the protocol that promotion and rollback rely on.

A site's place is one machine or a cluster, and a step never knows which. Every place makes the same guarantees, and
each method can be killed at any line and called again. A new place is a type in `records.site` and a case in the
function at the end; mypy reports a missing case.
"""

from contextlib import AbstractContextManager
from typing import Protocol

from shiplift.runtime.records.serving import Endpoint, Package
from shiplift.runtime.records.site import Cluster, Machine, Site
from shiplift.runtime.spec.serving import Rollout


class Production(Protocol):
    """What answers users' requests."""

    def lock(self, model: str) -> AbstractContextManager[None]:
        """A lock for one promotion or rollback of a model at a time; released if its holder dies.

        Raises:
            Temporary: another holder kept it for too long.
        """

    def endpoint(self, model: str) -> Endpoint:
        """Where a model answers."""

    def serves(self, package: Package) -> bool:
        """Whether exactly this package answers every request under its name."""

    def move(self, package: Package, rollout: Rollout) -> None:
        """Makes this package answer every request under its name.

        Raises:
            GoldenMismatch: it answers wrongly; the previous package still serves.
            ServerFailed: Triton can't serve it; the previous package still serves.
            CanaryFailed: it failed requests during the rollout; the previous package has all the traffic again.
        """

    def retire(self, model: str) -> None:
        """Stops what no longer serves, after its last request."""


def production(site: Site) -> Production:
    """The production of a site."""
    match site.place:  # imported here, because the other place's client is slow to import
        case Machine() as machine:
            from shiplift.runtime.serving.triton.production import LocalProduction  # noqa: PLC0415

            return LocalProduction(site, machine)
        case Cluster() as cluster:
            from shiplift.runtime.serving.kubernetes.production import ClusterProduction  # noqa: PLC0415

            return ClusterProduction(site, cluster)
