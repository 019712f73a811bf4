"""Which precisions are kept: a lower one must be within the accuracy budget, and faster than the one above it.

Engines are not compared here: which is faster depends on the batch size and the load, so tuning finds out.
"""

from typing import TypeVar

from shiplift.runtime.precision.evaluation import over_budget
from shiplift.runtime.records.precision import Candidate, TaskMetricName
from shiplift.runtime.spec.model import Quantization
from shiplift.runtime.spec.target import Target

C = TypeVar("C", bound=Candidate)


def judged(
    candidates: tuple[C, ...], target: Target, metric: TaskMetricName | None, settings: Quantization
) -> tuple[C, ...]:
    """The kept candidates, fastest first, then the dropped ones with their reasons.

    Each lower rung must be within the budget, and faster than the one above it on the same engine. The first candidate
    is the one that accuracy is compared with.
    """
    base, *lower = candidates
    kept: list[C] = [base]
    dropped: list[C] = []
    for candidate in lower:
        above = next((c for c in reversed(kept) if c.engine == candidate.engine), None)
        exact = candidate.engine == "trees"  # proved to answer what the author's model does: there is nothing to lose
        reason = candidate.dropped or ("" if exact else _objection(candidate, base, above, metric, settings))
        (dropped if reason else kept).append(candidate.model_copy(update={"dropped": reason}))
    excluded = {c.variant: reason for c in kept if (reason := _excluded(c, target)) and not c.dropped}
    dropped += [c.model_copy(update={"dropped": excluded[c.variant]}) for c in kept if c.variant in excluded]
    kept = [c for c in kept if c.variant not in excluded]
    kept, slower = _fastest_per_variant(sorted(kept, key=lambda c: c.latency_ms))
    kept, empty = [c for c in kept if not c.dropped], [c for c in kept if c.dropped]
    return (*kept, *empty, *slower, *dropped)


def _excluded(candidate: Candidate, target: Target) -> str:
    """Why a target can't use a candidate that was built only for comparison or as a source; empty if it can."""
    if ("fp32" if candidate.precision == "fp64" else candidate.precision) not in target.precisions:
        return f"target {target.name} does not allow {candidate.precision} (`precisions`)"
    if candidate.engine not in target.engines:
        return f"target {target.name} has `engine: {target.engine}`"
    return ""


def _fastest_per_variant(fastest_first: list[C]) -> tuple[list[C], list[C]]:
    """Keeps the fastest candidate of each precision on each engine, since packages are named by both."""
    kept: dict[str, C] = {}
    slower = []
    for candidate in fastest_first:
        if candidate.variant in kept:
            faster = kept[candidate.variant]
            reason = f"{faster.method} is faster: {faster.latency_ms:.3f} ms"
            slower.append(candidate.model_copy(update={"dropped": reason}))
        else:
            kept[candidate.variant] = candidate
    return list(kept.values()), slower


def _objection(
    candidate: Candidate,
    base: Candidate,
    above: Candidate | None,
    metric: TaskMetricName | None,
    settings: Quantization,
) -> str:
    if reason := over_budget(base.evaluation, candidate.evaluation, metric, settings):
        return reason
    if above is not None and candidate.latency_ms >= above.latency_ms:
        return (
            f"{candidate.latency_ms:.3f} ms per batch of {candidate.latency_batch} is not faster than "
            f"{above.precision}'s {above.latency_ms:.3f} ms"
        )
    return ""
