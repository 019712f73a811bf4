"""Score a share: some of a dataset's parts, with a private server."""

from shiplift.runtime.records.offline import OfflineOrder, OfflinePlan, OfflineShare, ShareScored
from shiplift.runtime.records.site import Site


def score_share(
    site: Site, offline_order: OfflineOrder, offline_plan: OfflinePlan, offline_share: OfflineShare
) -> ShareScored:
    """Scores the parts of a share that are not there yet: each appears whole, and only once.

    Raises:
        DataInvalid: the model refused a row, and the order ends then.
        PartsFailed: a part can't be read, and the order ends then.
        ServerFailed, MissingTool, ArtifactCorrupt: the package can't be served.
        StorageFull: no space is left.
    """
    from shiplift.runtime.offline.running import scored  # noqa: PLC0415 - only this needs pyarrow, a definition of the pipeline does not

    return scored(site, offline_order, offline_plan, offline_share)
