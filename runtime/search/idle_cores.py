"""Why the configuration that a search chose does not use all cores: a choice that its owner should be told."""

from collections.abc import Iterable

from shiplift.runtime.records.measurement import Trial
from shiplift.runtime.search.goal import Goal
from shiplift.runtime.search.space import Space


def why_idle(space: Space, goal: Goal, trials: Iterable[Trial], best: Trial) -> str:
    """Why the best trial's configuration leaves cores idle, in a sentence; empty if it leaves none."""
    used, allowed = _cores(best), max(instances * threads for instances, threads in space.placements)
    if used >= space.cores or best.engine == "python":  # Python code decides by itself how many threads it uses
        return ""
    told = f"the chosen configuration can use {used} of {space.cores} cores"
    if allowed < space.cores:
        return f"{told}: `search.instances` and `search.threads` allow no more than {allowed}"
    filled = [trial for trial in trials if _cores(trial) >= space.cores and not trial.error]
    if not filled:
        return f"{told}: no configuration that uses all of them could be measured"
    if not any(trial.within_slo for trial in filled) and best.within_slo:
        return f"{told}: with all of them, {_exceeded(goal, filled)}"
    fullest = max(filled, key=goal.utility)
    others = f", while other processes used {fullest.disturbed_cores:g} cores" if fullest.disturbed_cores else ""
    return f"{told} and {_compared(goal, fullest, best)}{others}"


def _compared(goal: Goal, filled: Trial, best: Trial) -> str:
    if goal.price_per_hour is not None:
        return f"costs {best.cost_per_million:.3g} for a million requests; with all it is {filled.cost_per_million:.3g}"
    return f"answers {best.throughput_per_s:.0f} requests per second; with all it is {filled.throughput_per_s:.0f}"


def _cores(trial: Trial) -> int:
    return trial.config.instances * trial.config.threads


def _exceeded(goal: Goal, filled: list[Trial]) -> str:
    """The limit that every configuration exceeds, with the least value of any."""
    p99, memory = min(trial.p99_ms for trial in filled), min(trial.memory_mb for trial in filled)
    if goal.memory_mb is not None and memory > goal.memory_mb:
        return f"the server takes {memory:.0f} MiB, and `search.memory_mb` is {goal.memory_mb:.0f}"
    return (
        f"p99 is {p99:.3g} ms or more, and `slo.p99_ms` is {goal.p99_ms:.3g}" if goal.p99_ms else "limits are exceeded"
    )
