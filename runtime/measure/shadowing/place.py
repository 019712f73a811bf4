"""The place where a challenger gets copies of the champion's requests: the protocol that the step relies on."""

from contextlib import AbstractContextManager
from typing import Protocol

from shiplift.runtime.records.deployment import Deployment
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.shadowing import Shadowed
from shiplift.runtime.records.site import Cluster, Machine, Site
from shiplift.runtime.spec.shadowing import Shadow


class RequestMirror(Protocol):
    """Requests that are copied. If its process dies, they are copied for a few more seconds at most."""

    def look(self) -> Shadowed:
        """Takes part in the copying for about a second, and returns what was seen since the beginning.

        Raises:
            PromotionConflict: another version serves now.
            Temporary: the place does not respond.
        """


class ShadowPlace(Protocol):
    """A place where production's requests can be copied to a staged challenger."""

    def mirroring(
        self, deployment: Deployment, champion: Package, wanted: Shadow
    ) -> AbstractContextManager[RequestMirror]:
        """Copies requests for as long as the context lasts."""


def shadow_place(site: Site) -> ShadowPlace:
    """The place of a site."""
    match site.place:  # imported here, because the other place's client is slow to import
        case Machine():
            from shiplift.runtime.measure.shadowing.on_machine import LocalShadow  # noqa: PLC0415

            return LocalShadow(site)
        case Cluster() as cluster:
            from shiplift.runtime.measure.shadowing.on_cluster import ClusterShadow  # noqa: PLC0415

            return ClusterShadow(cluster)
