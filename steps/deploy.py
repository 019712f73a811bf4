"""Deployment to staging: the tuned package on its own server, warmed up, its golden requests answered correctly."""

from shiplift.runtime.base.progress import progress
from shiplift.runtime.records.deployment import Deployment, which_targets_serve
from shiplift.runtime.records.measurement import Tuned
from shiplift.runtime.records.site import Site
from shiplift.runtime.serving.staging import staging
from shiplift.runtime.spec.serving_settings import Rollout, Serving
from shiplift.runtime.store.registry.client import Registry
from shiplift.runtime.store.registry.terms import CHALLENGER


def deploy(site: Site, tuned: tuple[Tuned, ...], serving: Serving, rollout: Rollout) -> Deployment:
    """Serves the targets' packages and moves the alias `challenger` to the version.

    On one machine only the first target serves; the packages of the others are kept, but not deployed. If the version
    is not promoted, staging and the alias are removed when the release ends.

    Raises:
        ServerFailed: Triton can't start or can't load a package, and the spec does not say to serve without its target.
        GoldenMismatch: a package answers a golden request incorrectly.
    """
    package = tuned[0].package
    place = staging(site, package.model, package.version)
    deployment = place.start(tuned, serving, rollout)
    if note := which_targets_serve(deployment.targets, deployment.left_out, deployment.left_out):
        progress(note)
    try:
        Registry(site.registry_uri).move_alias(package.model, CHALLENGER, package.version)
    except BaseException:
        place.end()
        raise
    return deployment
