"""Finds a release's targets: those of the spec, with names looked up in the site's current catalogue."""

from pathlib import Path

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.records.site import Site
from shiplift.runtime.spec.target import Fleet, Wanted
from shiplift.runtime.targets.catalogue import catalogue


def find_targets(site: Site, wanted: Wanted) -> Fleet:
    """The release's targets, complete and in the spec's order: on one machine, the first that can run serves.

    Raises:
        SpecInvalid: the catalogue lacks a named target or can't be read, or a target lacks what a cluster needs.
    """
    listed = catalogue(Path(site.home))
    missing = [name for name in wanted.targets if isinstance(name, str) and name not in listed]
    if missing:
        raise SpecInvalid(
            f"targets: the catalogue has no {', '.join(map(repr, missing))}; it has {', '.join(listed)}",
            do="`shiplift targets` lists the catalogue, `shiplift targets detect` adds to it.",
        )
    targets = tuple(listed[entry] if isinstance(entry, str) else entry for entry in wanted.targets)
    unservable = [target.name for target in targets if target.server == "nvidia" and not target.image]
    if unservable and "nvidia" in site.place.servers:
        raise SpecInvalid(
            f"targets: {', '.join(unservable)} has `server: nvidia` but no `image` to serve it on the cluster",
            do="Set the target's `image` to a Triton image, such as your mirror of NVIDIA's.",
        )
    return Fleet(targets=targets)
