"""Where models are served, whatever the place: what a step may ask of staging and of production.

A site's place is one machine or a cluster; a step never knows which. Every place keeps the same promises, and each
method can be killed at any line and called again. Another place is a type in `records.site` and a case in each of the
two functions at the end; mypy reports a case that is missing.
"""

from contextlib import AbstractContextManager
from typing import Protocol

from shiplift.runtime.records.measurement import Tuned
from shiplift.runtime.records.serving import Deployment, Endpoint, Package, Staged
from shiplift.runtime.records.site import Cluster, Machine, Site
from shiplift.runtime.spec.serving import Rollout, Serving


class Staging(Protocol):
    """Where one model version is tried, apart from production traffic."""

    def start(self, tuned: Tuned, serving: Serving) -> Deployment:
        """Serves a tuned package: loaded, warmed, answering its golden requests right.

        Raises:
            ServerFailed: Triton can't start or load it.
            GoldenMismatch: it answers a known request wrongly.
        """

    def beside(self, deployment: Deployment, package: Package) -> Staged:
        """Serves another package on equal terms, for a comparison.

        Raises:
            ServerFailed: Triton can't load it.
        """

    def memory_mb(self, deployment: Deployment) -> float | None:
        """What the staged server uses, in MiB; None where nobody measures it.

        Raises:
            ServerFailed: the server is gone, or it is another place's.
        """

    def end(self) -> None:
        """Ends whatever was started here and does not serve production; nothing there is no error."""


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


def staging(site: Site, model: str, version: int) -> Staging:
    """The staging place of a model version."""
    match site.place:  # the imports are inside: a client of another place is slow to import
        case Machine():
            from shiplift.runtime.serving.triton.staging import LocalStaging  # noqa: PLC0415

            return LocalStaging(site, model, version)
        case Cluster() as cluster:
            from shiplift.runtime.serving.kubernetes.staging import ClusterStaging  # noqa: PLC0415

            return ClusterStaging(site, cluster, model, version)


def production(site: Site) -> Production:
    """The production of a site."""
    match site.place:
        case Machine() as machine:
            from shiplift.runtime.serving.triton.production import LocalProduction  # noqa: PLC0415

            return LocalProduction(site, machine)
        case Cluster() as cluster:
            from shiplift.runtime.serving.kubernetes.production import ClusterProduction  # noqa: PLC0415

            return ClusterProduction(site, cluster)
