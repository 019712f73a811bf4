"""The knee of the curve of throughput over latency: what is chosen if no limit on latency says what is late.

The fastest configuration has the most requests in flight, and near its end the curve is flat: a little throughput costs
much latency. Without `slo.p99_ms` nobody asked for that, and so a configuration that is about as fast, but answers much
sooner, is better.
"""

import math
from collections.abc import Sequence

from shiplift.runtime.records.measurement import Trial
from shiplift.runtime.search.goal import Goal

_WORTH = 4.0  # percent of p99 for a percent of throughput
ABOUT = math.log(1.05)  # configurations whose goals differ by less are about equally fast


def knee(trials: Sequence[Trial], goal: Goal) -> int:
    """The index of the knee among trials: the first is the fastest, and counts unless another is clearly better."""
    least = goal.utility(trials[0]) - ABOUT
    near = [at for at, trial in enumerate(trials) if goal.utility(trial) >= least and trial.p99_ms > 0]
    return max(near, key=lambda at: (_value(trials[at], goal), -at), default=0)


def told(trials: Sequence[Trial], best: Trial, goal: Goal) -> str:
    """What the knee is, in a sentence; empty where a limit on latency decided, or where there was no choice.

    The best is compared with those that were measured in windows as long as its own.
    """
    measured = [each for each in trials if each.window_ms >= best.window_ms and math.isfinite(goal.utility(each))]
    if goal.p99_ms is not None or not measured or len({(each.variant, each.config) for each in trials}) == 1:
        return ""
    fastest = max(measured, key=goal.utility)
    chosen = f"{best.throughput_per_s:.0f} inferences per second with a p99 of {best.p99_ms:.3g} ms"
    if fastest.config == best.config and fastest.variant == best.variant:
        return f"the knee of the curve was chosen, which is the fastest configuration: {chosen}"
    other = f"{fastest.throughput_per_s:.0f} with {fastest.p99_ms:.3g} ms"
    return f"the knee of the curve was chosen: {chosen}; the fastest measurement is {other}"


def _value(trial: Trial, goal: Goal) -> float:
    return goal.utility(trial) - math.log(trial.p99_ms) / _WORTH
