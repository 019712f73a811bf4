"""Plan: which package scores a dataset, and which parts the dataset has."""

from shiplift.runtime.offline.choosing import package_of
from shiplift.runtime.records.offline import OfflineOrder, OfflinePlan
from shiplift.runtime.records.site import Site


def plan_offline(site: Site, offline_order: OfflineOrder) -> OfflinePlan:
    """What is to be scored, with what, by whom. Nothing runs before every file's columns were checked.

    An output that an earlier run of the same order has begun is gone on with.

    Raises:
        NotFound, NotAdmitted: there is no such version, or it was not promoted.
        DataInvalid, UsageError: the model does not take the dataset.
        OutputTaken: the output has something else.
        StorageFull: no space is left.
        Temporary: the registry or production does not respond.
    """
    from shiplift.runtime.offline.running import planned  # noqa: PLC0415 - only this needs pyarrow, a definition of the pipeline does not

    return planned(site, offline_order, package_of(site, offline_order))
