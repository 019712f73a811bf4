"""Which places a release is for: the spec's targets, those given by name as the site's catalogue has them now."""

from pathlib import Path

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.records.site import Site
from shiplift.runtime.spec.target import Fleet, Wanted
from shiplift.runtime.targets.catalogue import catalogue


def find_targets(site: Site, wanted: Wanted) -> Fleet:
    """The release's targets, each in full and in the spec's order: the first that can run is the one that serves.

    Raises:
        SpecInvalid: the catalogue has no target of a name, or can't be read; or a target lacks what a cluster needs.
    """
    listed = catalogue(Path(site.home))
    missing = [one for one in wanted.targets if isinstance(one, str) and one not in listed]
    if missing:
        raise SpecInvalid(
            f"targets: the catalogue has no {', '.join(map(repr, missing))}; it has {', '.join(listed)}",
            do="`shiplift targets` lists it, `shiplift targets detect` adds to it.",
        )
    found = tuple(listed[one] if isinstance(one, str) else one for one in wanted.targets)
    bare = [one.name for one in found if one.server == "nvidia" and not one.image]
    if bare and "nvidia" in site.place.servers:
        raise SpecInvalid(
            f"targets: {', '.join(bare)} has `server: nvidia` and no `image`, so nothing could serve it on the cluster",
            do="Give the target the Triton image to run, such as your mirror of NVIDIA's.",
        )
    return Fleet(targets=found)
