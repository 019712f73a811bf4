"""What the status says about a revision's groups, if it has several."""

from collections.abc import Sequence

from shiplift.runtime.serving.operator.groups.weighing import powers
from shiplift.runtime.serving.operator.observed import Observed
from shiplift.runtime.serving.operator.resources import GroupStatus


def group_statuses(observed: Observed, revision: str) -> tuple[GroupStatus, ...]:
    """The groups of a revision with several."""
    groups = observed.groups(revision)
    if len(groups) < 2:
        return ()
    shares = powers(observed, revision)
    return tuple(
        GroupStatus(
            name=group.name,
            target=group.package.target,
            replicas=len(observed.pods.get(group.name, ())),
            ready_replicas=len(observed.ready_in(group.name)),
            percent=round(100 * shares[group.name] / sum(shares.values()), 1),
            capacity_per_second=round(group.capacity.within_slo_per_s, 3) if group.capacity else None,
        )
        for group in groups
    )


def in_words(statuses: Sequence[GroupStatus]) -> str:
    """The groups' targets and shares in a few words, for a column of `kubectl get`."""
    return ", ".join(f"{status.target or status.name} {status.percent:.0f} %" for status in statuses)


def without_pods(observed: Observed, revision: str) -> str:
    """A sentence about the groups that have no ready pod while others have one; empty if there are none."""
    statuses = group_statuses(observed, revision)
    missing = [status for status in statuses if not status.ready_replicas]
    if not missing or len(missing) == len(statuses):
        return ""
    names = ", ".join(status.target or status.name for status in missing)
    return f"no pod of {revision} for target {names} is ready: its other targets take the traffic"


def selector(observed: Observed, revision: str, label: str) -> str:
    """The label selector of a revision's pods."""
    names = observed.names(revision)
    return f"{label}={revision}" if len(names) == 1 else f"{label} in ({','.join(names)})"
