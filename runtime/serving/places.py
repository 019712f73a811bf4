"""Where models are served, whatever the place: what a step may ask of staging and of production.

A site is one machine or a cluster; a step never knows which. Both places keep the same promises, and each method can
be killed at any line and called again.
"""

from contextlib import AbstractContextManager
from typing import Protocol

from shiplift.runtime.records.serving import Deployment, Endpoint, Package, Staged
from shiplift.runtime.records.site import Site
from shiplift.runtime.spec.serving import Rollout, Serving


class Staging(Protocol):
    """Where one model version is tried, apart from production traffic."""

    def start(self, package: Package, serving: Serving) -> Deployment:
        """Serves a package: loaded, warmed, answering its golden requests right.

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
        """What the staged server uses, in MiB; None where nobody measures it."""

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
    if site.cluster is not None:
        from shiplift.runtime.serving.kubernetes.staging import ClusterStaging  # noqa: PLC0415 - its client is slow to import

        return ClusterStaging(site, site.cluster, model, version)
    from shiplift.runtime.serving.triton.staging import LocalStaging  # noqa: PLC0415

    return LocalStaging(site, model, version)


def production(site: Site) -> Production:
    """The production of a site."""
    if site.cluster is not None:
        from shiplift.runtime.serving.kubernetes.production import ClusterProduction  # noqa: PLC0415 - its client is slow to import

        return ClusterProduction(site, site.cluster)
    from shiplift.runtime.serving.triton.production import LocalProduction  # noqa: PLC0415

    return LocalProduction(site)
