"""What can happen to a model, as the type of an event: the only table of their names.

A name never changes its meaning. Another kind of event is a line here, and a call of `tell` where it happens.
"""

from enum import StrEnum

from shiplift.runtime.records.release import ReleaseOutcome

PREFIX = "dev.shiplift."


class EventKind(StrEnum):
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


ENDED: dict[ReleaseOutcome, EventKind] = {
    "promoted": EventKind.PROMOTED,
    "refused": EventKind.REFUSED,
    "inconclusive": EventKind.REFUSED,
    "not admitted": EventKind.REFUSED,
    "waiting for approval": EventKind.WAITING,
    "rejected": EventKind.REJECTED,
    "aborted": EventKind.ABORTED,
    "cancelled": EventKind.CANCELLED,
    "failed": EventKind.FAILED,
}
GOOD = (EventKind.PROMOTED, EventKind.HEALTHY, EventKind.BAKED)
BAD = (
    EventKind.REFUSED,
    EventKind.REJECTED,
    EventKind.ABORTED,
    EventKind.FAILED,
    EventKind.UNHEALTHY,
    EventKind.QUARANTINED,
    EventKind.DRIFTED,
)
