"""Finish: all parts of a scored dataset are there."""

from shiplift.runtime.records.offline import OfflineOrder, OfflinePlan, OfflineResult, ShareScored


def finish_offline(
    offline_order: OfflineOrder, offline_plan: OfflinePlan, share_scored: tuple[ShareScored, ...]
) -> OfflineResult:
    """Says in the output that it is whole.

    Raises:
        PartsFailed: parts are missing.
    """
    from shiplift.runtime.offline.running import finished  # noqa: PLC0415 - only this needs pyarrow, a definition of the pipeline does not

    return finished(offline_order, offline_plan, share_scored)
