"""Where one model version is tried, whatever the place: what `deploy` and `load_test` may ask of it.

A site's place is one machine or a cluster; a step never knows which. Every place keeps the same promises, and each
method can be killed at any line and called again. Another place is a type in `records.site` and a case in the function
at the end; mypy reports a case that is missing. Production is a module of its own: a change of how traffic moves
measures nothing again.
"""

from typing import Protocol

from shiplift.runtime.records.measurement import Tuned
from shiplift.runtime.records.serving import Deployment, Package, Staged
from shiplift.runtime.records.site import Cluster, Machine, Site
from shiplift.runtime.spec.serving import Serving


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


def staging(site: Site, model: str, version: int) -> Staging:
    """The staging place of a model version."""
    match site.place:  # the imports are inside: a client of another place is slow to import
        case Machine():
            from shiplift.runtime.serving.triton.staging import LocalStaging  # noqa: PLC0415

            return LocalStaging(site, model, version)
        case Cluster() as cluster:
            from shiplift.runtime.serving.kubernetes.staging import ClusterStaging  # noqa: PLC0415

            return ClusterStaging(site, cluster, model, version)
