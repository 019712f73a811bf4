"""The clairvoyant rule: it knows every arrival and starts pods ahead by their start-up time.

The trace is cut into slots. For each slot and number of replicas a simulation of that slot alone counts the requests
over the SLO. A Viterbi search then finds the sequence of replica counts with the least cost: replica-seconds, the
start-up and drain of each pod that is added, and a price for each request over the SLO. The price is bisected until the
whole trace, simulated with the schedule and all backlogs carried over, has at most 1 % of its requests over the SLO.
The optimum can only be cheaper, so `fluid_s` gives a bound from below that no schedule beats.
"""

import itertools
import math

import numpy as np
import simpy

from benchmarks.scaling.control import Outcome, serve
from benchmarks.scaling.fleet import Fleet, Floats, Steps
from benchmarks.scaling.profile import Profile
from benchmarks.scaling.traces import Trace

SLOT_S = 15.0
ALLOWED = 0.01  # the share of requests over the SLO that p99 <= SLO allows
_BISECTIONS = 6


def fluid_s(trace: Trace, profile: Profile) -> float:
    """Replica-seconds of always full batches for 99 % of the requests: no schedule needs less."""
    return (1 - ALLOWED) * len(trace.arrivals) / profile.peak_per_s


def schedule(trace: Trace, profile: Profile) -> list[int]:
    """The replicas in each slot."""
    misses = slot_misses(trace, profile)
    cheapest, low, high = viterbi(misses, profile, 20), 0.02, 20.0
    tried: dict[tuple[int, ...], bool] = {}
    for _ in range(_BISECTIONS):
        price = math.sqrt(low * high)
        candidate = viterbi(misses, profile, price)
        if (key := tuple(candidate)) not in tried:
            tried[key] = run(trace, profile, candidate).missed / len(trace.arrivals) <= ALLOWED
        cheapest, low, high = (candidate, low, price) if tried[key] else (cheapest, price, high)
    return cheapest


def slot_misses(trace: Trace, profile: Profile) -> list[dict[int, int]]:
    """For each slot, the number of requests over the SLO by number of replicas, from too few up to enough."""
    edges = np.searchsorted(trace.arrivals, np.arange(0, trace.duration_s + SLOT_S, SLOT_S))
    return [_misses(trace.arrivals[a:b], profile) for a, b in itertools.pairwise(edges)]


def _misses(arrivals: Floats, profile: Profile) -> dict[int, int]:
    least = max(1, math.floor(0.9 * len(arrivals) / SLOT_S / profile.peak_per_s))
    misses: dict[int, int] = {}
    for replicas in range(least, least + 60):
        fleet = Fleet(simpy.Environment(), profile, arrivals, replicas)
        fleet.advance(float("inf"))
        misses[replicas] = int(np.sum(np.asarray(fleet.latencies) * 1000 > profile.slo_ms))
        if not misses[replicas]:
            break
    return misses


def viterbi(misses: list[dict[int, int]], profile: Profile, price: float) -> list[int]:
    """The cheapest sequence of replica counts, if a request over the SLO costs `price` replica-seconds."""
    most = max(max(slot) for slot in misses)
    counts = np.arange(most + 1)
    added = np.maximum(0, counts[:, None] - counts[None, :]) * (profile.start_s + profile.drain_s)  # [to, from]
    total, came_from = np.zeros(most + 1), []
    for slot in misses:
        cost = np.array([_cost(slot, count, price) for count in range(most + 1)])
        steps = total[None, :] + added
        came_from.append(steps.argmin(axis=1))
        total = steps.min(axis=1) + cost
        if len(came_from) == 1:
            total = cost  # the first slot's pods are there already
    path = [int(total.argmin())]
    for previous in reversed(came_from[1:]):
        path.append(int(previous[path[-1]]))
    return path[::-1]


def _cost(slot: dict[int, int], count: int, price: float) -> float:
    if count < min(slot):
        return math.inf
    return count * SLOT_S + price * slot.get(count, 0)


def run(trace: Trace, profile: Profile, counts: list[int], *, ahead_s: float | None = None) -> Outcome:
    """Serves the trace with a schedule; pods start `ahead_s` before their slot, by default their start-up time."""
    ahead = profile.start_s if ahead_s is None else ahead_s
    return serve(trace, profile, lambda fleet: _start(fleet, counts, ahead), start=counts[0])


def _start(fleet: Fleet, counts: list[int], ahead_s: float) -> None:
    fleet.env.process(_follow(fleet, counts, ahead_s))


def _follow(fleet: Fleet, counts: list[int], ahead_s: float) -> Steps:
    """Wants, at any time, the most replicas of the slots from now to `ahead_s` from now."""
    edges = {slot * SLOT_S for slot in range(len(counts))}
    for at in sorted(edges | {max(0.0, edge - ahead_s) for edge in edges}):
        yield fleet.env.timeout(max(0.0, at - fleet.env.now))
        now, then = int(at // SLOT_S), int((at + ahead_s) // SLOT_S)
        if (wanted := max(counts[now : then + 1])) != fleet.size:
            fleet.scale(wanted)
