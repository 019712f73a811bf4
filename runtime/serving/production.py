"""The place that answers users' requests, of whatever kind: the protocol that promotion and rollback rely on.

A site's place is one machine or a cluster, and a step never knows which. Every place makes the same guarantees, and
each method can be killed at any line and called again. A new place is a type in `records.site` and a case in the
function at the end; mypy reports a missing case.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from shiplift.runtime.records.baking import Baking
from shiplift.runtime.records.capacity import Capacity
from shiplift.runtime.records.deployment import Endpoint
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.promotion import Abort, Beside, Moving
from shiplift.runtime.records.retirement import Traffic
from shiplift.runtime.records.site import Cluster, Machine, Site
from shiplift.runtime.spec.serving_settings import Rollout


class Production(Protocol):
    """The place that answers users' requests."""

    def lock(self, model: str) -> AbstractContextManager[None]:
        """A lock that allows one promotion or rollback of a model at a time; released if its holder dies.

        Raises:
            Temporary: another holder kept it for too long.
        """

    def endpoint(self, model: str) -> Endpoint:
        """The addresses at which a model answers."""

    def serving(self, model: str) -> int:
        """The version that answers most of a model's requests, whatever the registry says; 0 if none does."""

    def quarantine(self, model: str, version: int) -> str:
        """Why a version was kept apart here once, because it crashed; empty if it never was."""

    def serves(self, package: Package, others: Sequence[Beside] = ()) -> bool:
        """Whether exactly this package answers every request under its name, with the `others` where they can serve."""

    def move(
        self,
        package: Package,
        rollout: Rollout,
        capacity: Capacity | None = None,
        others: Sequence[Beside] = (),
        requested_at: float | None = None,
    ) -> None:
        """Makes this package answer every request under its name; `capacity` is what one replica of it can take.

        `others` are the packages of other targets, which share the requests where the place has nodes for them.
        With `requested_at`, the time of a release's trigger, a person can abort this until `commit`.

        Raises:
            Aborted: a person did; what served before has the traffic, or gets it from `give_back`.
            GoldenMismatch: it answers wrongly; the previous package still serves.
            ServerFailed: Triton can't serve it; the previous package still serves.
            CanaryFailed: it failed requests during the rollout; the previous package has all the traffic again.
        """

    def moving(self, model: str) -> Moving | None:
        """The promotion whose traffic moves, or that ended and is not concluded; None if there is none."""

    def abort(self, model: str, order: Abort) -> Moving | None:
        """Orders that the traffic of a promotion goes back; the first order counts.

        Returns the promotion as it is then: with an `abort`, or `committed` if it is too late. None: none is under way.
        """

    def commit(self, model: str) -> None:
        """Ends the time in which a promotion can be aborted.

        Raises:
            Aborted: it was, before.
        """

    def bake(self, baking: Baking) -> None:
        """Begins to watch a version that has all traffic; the version before it stays ready meanwhile."""

    def baking(self, model: str) -> Baking | None:
        """The last bake of a model, over or not; None if it had none."""

    def baked(self, baking: Baking) -> None:
        """Notes how a bake ended, unless another one has taken its place."""

    def settle(self, model: str, version: int) -> None:
        """Forgets the promotion of a version, whose release is concluded."""

    def withdraw(self, model: str) -> None:
        """Serves the model no longer. Requests under way are answered."""

    def traffic(self, model: str) -> Traffic:
        """The requests that clients sent to a model lately; waits until it is known, but not for long."""

    def drop(self, package: Package) -> None:
        """Removes what the package of a version that does not serve has left here."""

    def retire(self, model: str) -> None:
        """Stops former versions, once their last requests are answered."""

    def declare(
        self, package: Package, replicas: int, capacity: Capacity | None = None, others: Sequence[Beside] = ()
    ) -> bool:
        """Declares a model's champion if production has no record of the model; returns whether it did."""


def production(site: Site) -> Production:
    """The production of a site."""
    match site.place:  # imported here, because the other place's client is slow to import
        case Machine() as machine:
            from shiplift.runtime.serving.machine.production import LocalProduction  # noqa: PLC0415

            return LocalProduction(site, machine)
        case Cluster() as cluster:
            from shiplift.runtime.serving.kubernetes.production import ClusterProduction  # noqa: PLC0415

            return ClusterProduction(site, cluster)
