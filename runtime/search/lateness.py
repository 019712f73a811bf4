"""When a waiting request is late: from then on, requests that can still be answered in time go first.

Served in turn, a queue makes every request late once more arrive than the server can handle, until the backlog is gone.
Served by deadline, only the excess is late. This is the idea of adaptive LIFO ("Fail at Scale", ACM Queue 13(8), 2015),
but nothing is rejected, and requests in time keep their order. Triton's dynamic batcher supports it.
"""

from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.measurement import Trial
from shiplift.runtime.search.goal import SPREAD, Goal
from shiplift.runtime.serving.triton.config import least_policed_instances
from shiplift.runtime.spec.serving_settings import Queue, Serving


def late_after_ms(package: Package, best: Trial, serving: Serving, goal: Goal) -> float:
    """How long a request may wait before others go first: the p99 limit minus an execution. 0: requests go in turn.

    They also go in turn if the spec has no limit or has a queue policy of its own, if an execution takes most of the
    limit, or if there are too few instances for Triton's policy to work without stalls.
    """
    if not serving.late_last or goal.p99_ms is None or serving.queue != Queue() or serving.priorities:
        return 0.0
    if package.stateful or best.config.instances < least_policed_instances(package.server):
        return 0.0
    if not best.compute_ms > 0 or not goal.absorbs_overload(best):
        return 0.0
    return round(goal.p99_ms - SPREAD * best.compute_ms, 3)
