"""What can happen to a model, as the type of an event: the only table of their names.

A name never changes its meaning. Another kind of event is a line here, and a call of `tell` where it happens.
"""

from enum import StrEnum

from shiplift.runtime.records.release import ReleaseOutcome

PREFIX = "dev.shiplift."


class Kind(StrEnum):
    """The type of an event, without `dev.shiplift.`."""

    STARTED = "release.started"
    SHADOWING = "release.shadowing"
    WAITING = "release.waiting_for_approval"
    PROMOTED = "release.promoted"
    REFUSED = "release.refused"
    REJECTED = "release.rejected"
    ABORTED = "release.aborted"
    CANCELLED = "release.cancelled"
    FAILED = "release.failed"
    ROLLED_BACK = "model.rolled_back"
    BAKED = "model.baked"
    RETIRED = "model.retired"
    UNHEALTHY = "model.unhealthy"
    HEALTHY = "model.healthy"
    QUARANTINED = "model.quarantined"
    DRIFTED = "model.drifted"


ENDED: dict[ReleaseOutcome, Kind] = {
    "promoted": Kind.PROMOTED,
    "refused": Kind.REFUSED,
    "inconclusive": Kind.REFUSED,
    "not admitted": Kind.REFUSED,
    "waiting for approval": Kind.WAITING,
    "rejected": Kind.REJECTED,
    "aborted": Kind.ABORTED,
    "cancelled": Kind.CANCELLED,
    "failed": Kind.FAILED,
}
GOOD = (Kind.PROMOTED, Kind.HEALTHY, Kind.BAKED)
BAD = (Kind.REFUSED, Kind.REJECTED, Kind.ABORTED, Kind.FAILED, Kind.UNHEALTHY, Kind.QUARANTINED, Kind.DRIFTED)
