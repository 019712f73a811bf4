"""Whether the registry still has the version that was judged: registered at the same time, with the same bytes.

A name and a number don't identify a version. A registered model can be deleted and created again, restored from a
backup, or have its files overwritten in place. What an earlier Shiplift did not record is unknown, and not compared.
"""

from pathlib import Path

from shiplift.runtime.base.errors import ArtifactCorrupt, NotAdmitted, NotFound, VersionReplaced
from shiplift.runtime.host.folders import scratch_folder
from shiplift.runtime.records.model import ModelVersion
from shiplift.runtime.records.promotion import Promotion
from shiplift.runtime.records.request import Request, same_time
from shiplift.runtime.records.site import Site
from shiplift.runtime.store.artifacts import tree_digest
from shiplift.runtime.store.registry.client import Registry
from shiplift.runtime.store.registry.terms import VersionInfo


def require_registration(info: VersionInfo, wanted: Request | ModelVersion | Promotion) -> VersionInfo:
    """The registry's version, if it is the one that is wanted, as far as that is known.

    Raises:
        VersionReplaced: it was registered at another time.
    """
    if not same_time(wanted.registered_at, info.created_at):
        raise VersionReplaced(
            f"version {info.version} of {info.name!r} was deleted, and another one has its number now",
            do=f"Release the one that is there now: `shiplift release {info.name}/{info.version}`.",
        )
    return info


def require_unchanged(site: Site, info: VersionInfo, judged: ModelVersion | Promotion, registry: Registry) -> None:
    """Passes if the registry's version is the one that was judged; downloads its files, as nothing else tells.

    Raises:
        VersionReplaced: it was registered at another time, or its files are others, or gone.
        Temporary: the registry does not respond.
    """
    require_registration(info, judged)
    if judged.digest and judged.digest != _content(site, info, registry):
        raise VersionReplaced(
            f"the files of version {info.version} of {info.name!r} are not the ones that were judged: they were "
            "overwritten or deleted",
            do=f"Release the files that are there now: `shiplift rerun {info.name}/{info.version}`.",
        )


def is_unchanged(site: Site, info: VersionInfo, judged: ModelVersion | Promotion, registry: Registry) -> bool:
    """Whether the registry's version is the one that was judged.

    Raises:
        Temporary: the registry does not respond.
    """
    try:
        require_unchanged(site, info, judged, registry)
    except VersionReplaced:
        return False
    return True


def _content(site: Site, info: VersionInfo, registry: Registry) -> str:
    """The digest of the version's files, as admission computes it; empty if they are gone or inadmissible."""
    home = Path(site.home)
    home.mkdir(parents=True, exist_ok=True)
    with scratch_folder(home) as folder:
        try:
            return tree_digest(registry.download_model(info, folder / "model", limit_mb=site.policy.max_size_mb))
        except (NotFound, NotAdmitted, ArtifactCorrupt):
            return ""
