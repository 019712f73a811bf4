"""Deployment to staging: the tuned package on a server of its own, warmed, answering its golden requests right."""

from shiplift.runtime.base.progress import progress
from shiplift.runtime.records.measurement import Tuned
from shiplift.runtime.records.serving import Deployment, which_target_serves
from shiplift.runtime.records.site import Site
from shiplift.runtime.serving.staging import staging
from shiplift.runtime.spec.serving import Serving
from shiplift.runtime.store.registry import CHALLENGER, Registry


def deploy(site: Site, tuned: tuple[Tuned, ...], serving: Serving) -> Deployment:
    """Serves the first target's package and names the version `challenger`; what is not promoted ends with the release.

    One target serves per release. The others' packages are kept, and nothing runs them.

    Raises:
        ServerFailed: Triton can't start or load it.
        GoldenMismatch: it answers a known request wrongly.
    """
    served, package = tuned[0], tuned[0].package
    if note := which_target_serves(served.target, (other.target for other in tuned[1:])):
        progress(note)
    place = staging(site, package.model, package.version)
    deployment = place.start(served, serving)
    try:
        Registry(site.registry_uri).move_alias(package.model, CHALLENGER, package.version)
    except BaseException:
        place.end()
        raise
    return deployment
