"""Decides which old revisions to delete, so that a service that is promoted every day does not keep them all."""

from shiplift.runtime.serving.operator.evidence import Key
from shiplift.runtime.serving.operator.observed import Observed
from shiplift.runtime.serving.operator.resources import REVISION_KIND, ServiceSpec, ServiceStatus

_NEW_S = 900.0  # a promotion writes the revision first, and then its name into the service


def to_prune(observed: Observed, spec: ServiceSpec, status: ServiceStatus) -> list[Key]:
    """The unneeded revisions of this service's history beyond the newest `revisionHistoryLimit`.

    A revision stays if it serves, should serve, served before or failed, or if no promotion wrote it.
    """
    history = sorted(
        (seen.created_at, name) for name, seen in observed.revisions.items() if seen.history_of == observed.name
    )
    old = history[: max(0, len(history) - spec.revision_history_limit)]
    needed = _needed(spec, observed.status) | _needed(spec, status)
    return [
        (REVISION_KIND, name)
        for created_at, name in old
        if name not in needed and observed.now - created_at > _NEW_S and not observed.runs(name)
    ]


def _needed(spec: ServiceSpec, status: ServiceStatus) -> set[str]:
    shares = {weight.revision for weight in status.weights}
    return shares | {spec.revision, status.revision, status.previous_revision, status.failed_revision}
