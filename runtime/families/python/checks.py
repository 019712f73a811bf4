"""Whether a site, a spec and a target allow Python models."""

from shiplift.runtime.base.errors import NotAdmitted, SpecInvalid
from shiplift.runtime.families import spec_checks
from shiplift.runtime.records.site import Site
from shiplift.runtime.spec.document import ReleaseSpec
from shiplift.runtime.spec.target import Target


def check_python(site: Site, spec: ReleaseSpec) -> None:
    """Checks, before time is spent on it, that a site and a spec let a Python model be released.

    Raises:
        NotAdmitted: the site has no index to get packages from.
        SpecInvalid: the spec asks for something that only graphs have.
    """
    if site.place.layers and not site.policy.package_index:
        raise NotAdmitted(
            "a Python model's packages come from the index that `policy.package_index` names, and it names none",
            do="Ask the owner of this site to set it; or log the model as pt2, skops or ONNX.",
        )
    spec_checks.refuse(spec_checks.of_graphs(spec), "a Python model has no graph")
    for target in spec_checks.targets_of(spec):
        check_target(target)


def check_target(target: Target) -> None:
    """Checks that a target serves Python models.

    Raises:
        SpecInvalid: it does not.
    """
    if target.gpu or target.engine != "auto":
        raise SpecInvalid(
            f"target {target.name} can't serve a Python model: only a CPU with `engine: auto` does",
            do="Choose such a target, or log the model as pt2, skops or ONNX.",
        )
