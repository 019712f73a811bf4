"""Deployment to staging: the tuned package on its own server, warmed up and answering its golden requests correctly."""

from shiplift.runtime.base.progress import progress
from shiplift.runtime.records.measurement import Tuned
from shiplift.runtime.records.serving import Deployment, which_target_serves
from shiplift.runtime.records.site import Site
from shiplift.runtime.serving.staging import staging
from shiplift.runtime.spec.serving import Serving
from shiplift.runtime.store.registry import CHALLENGER, Registry


def deploy(site: Site, tuned: tuple[Tuned, ...], serving: Serving) -> Deployment:
    """Serves the first target's package and moves the alias `challenger` to the version.

    If the version is not promoted, staging and alias end with the release. Only one target serves per release: the
    packages of the others are kept, but not deployed.

    Raises:
        ServerFailed: Triton can't start or can't load the package.
        GoldenMismatch: it answers a golden request incorrectly.
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
