"""The place where a model version is tried out, of whatever kind: the protocol that `deploy` and `load_test` rely on.

A site's place is one machine or a cluster, and a step never knows which. Every place makes the same guarantees, and
each method can be killed at any line and called again. A new place is a type in `records.site` and a case in the
function at the end; mypy reports a missing case. Production is a separate module, so that a change in how traffic moves
does not invalidate measurements.
"""

from contextlib import AbstractContextManager
from typing import Protocol

from shiplift.runtime.records.deployment import Deployment, Staged
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.measurement import Tuned
from shiplift.runtime.records.site import Cluster, Machine, Site
from shiplift.runtime.spec.serving_settings import Rollout, Serving


class Staging(Protocol):
    """The place where a model version is tried out, apart from production traffic."""

    def start(self, tuned: tuple[Tuned, ...], serving: Serving, rollout: Rollout) -> Deployment:
        """Serves the packages of as many targets as the place can: loaded, warmed up, and answering golden requests.

        Raises:
            ServerFailed: Triton can't start or load it.
            GoldenMismatch: it answers a known request wrongly.
        """

    def beside(self, deployment: Deployment, package: Package) -> AbstractContextManager[Staged]:
        """Serves another package on equal terms for as long as the context lasts, for a comparison.

        Raises:
            ServerFailed: Triton can't load it.
        """

    def memory_mb(self, deployment: Deployment) -> float | None:
        """The memory that the staging server uses, in MiB; None where nothing measures it.

        Raises:
            ServerFailed: the server is gone, or belongs to another place.
        """

    def end(self) -> None:
        """Stops everything that was started here and does not serve production; does nothing if nothing runs."""


def staging(site: Site, model: str, version: int) -> Staging:
    """The staging place of a model version."""
    match site.place:  # imported here, because the other place's client is slow to import
        case Machine():
            from shiplift.runtime.serving.machine.staging import LocalStaging  # noqa: PLC0415

            return LocalStaging(site, model, version)
        case Cluster() as cluster:
            from shiplift.runtime.serving.kubernetes.staging import ClusterStaging  # noqa: PLC0415

            return ClusterStaging(site, cluster, model, version)
