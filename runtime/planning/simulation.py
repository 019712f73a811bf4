"""A pipeline under its arrivals, request by request: queues, Triton's dynamic batchers, joins, and instances.

The event loop is our own: a search runs hundreds of simulations, and one SimPy event per request takes ten times as
long. A test compares it with the same model written in SimPy, request by request.

A batcher gives an idle instance the waiting requests, in turn, up to its largest batch. If they don't fill a batch, it
waits until the oldest request has waited for the queue delay. An execution takes longer, the longer its instance was
idle, and so does the first request after the pipeline was idle. A request's rows stay together; a loop's rows are split
into as few requests as the largest batch allows. The first arrival at an idle instance does not wait for others that
arrive at the same instant, since the first one wakes Triton's batcher.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shiplift.runtime.planning.arrivals import Floats
from shiplift.runtime.planning.profiles import Cold, Profiles
from shiplift.runtime.planning.scenario import Graph, Scenario
from shiplift.runtime.planning.settings import MemberSettings

_LATE_SHARE = 0.01  # this share of the requests may be late within a 99th percentile
Item = tuple[float, int, int, int]
"""A request in a member's queue: when it came, its rows, the step, and the pipeline's request."""


@dataclass(frozen=True, kw_only=True)
class SimulatedLoad:
    """What a member did: executions, their rows, and how long its instances were busy in s."""

    executions: int
    rows: int
    busy_s: float


@dataclass(frozen=True, kw_only=True)
class SimulationOutcome:
    """What happened. Times are in s.

    `latencies` are by request, without `request_ms`; `began` and `done` are by step and request. `loads` are by member,
    and `python_s` is how long each step kept workers busy. `ended_s` is when the last request was answered. `given_up`:
    so many requests were late that the limit can't be held; the arrays are then incomplete.
    """

    latencies: Floats
    began: Floats
    done: Floats
    loads: Mapping[str, SimulatedLoad]
    python_s: tuple[float, ...]
    ended_s: float
    given_up: bool = False

    def percentile_ms(self, percent: float) -> float:
        """A percentile of the latency; infinite if the simulation was given up."""
        return math.inf if self.given_up else float(np.percentile(self.latencies, percent)) * 1000


def simulate(
    graph: Graph,
    scenario: Scenario,
    profiles: Profiles,
    settings: Mapping[str, MemberSettings],
    *,
    instances: int = 0,
    workers: int = 0,
    limit_ms: float = math.inf,
) -> SimulationOutcome:
    """Serves a scenario with these settings; a member that has none answers at once.

    `instances` is how many requests a pipeline in BLS works on at once, and `workers` how many Python steps of all
    requests run at once (0: any number). A 99th percentile above `limit_ms` ends the simulation as soon as it is
    certain.
    """
    simulation = _Simulation(graph, scenario, profiles, settings, instances if graph.bls else 0, workers)
    return simulation.run(limit_ms / 1000)


@dataclass(slots=True, eq=False)
class _Station:
    """A member's queue and instances."""

    idle: deque[float]  # since when each idle instance has been idle; the first one gets the next batch
    max_batch: int
    delay_s: float
    seconds: list[float]
    cold: Cold
    waiting: deque[Item] = field(default_factory=deque)
    wakes_at: float = -1.0
    executions: int = 0
    rows: int = 0
    busy_s: float = 0.0

    def take(self, now: float) -> tuple[list[Item], int]:
        """The next batch and its rows, or nothing if it is worth waiting for more."""
        waiting, most = self.waiting, self.max_batch
        count = rows = 0
        for item in waiting:
            if count and rows + item[1] > most:
                full = True
                break
            rows += item[1]
            count += 1
        else:
            full = rows >= most
        if not full and now < waiting[0][0] + self.delay_s:
            return [], 0
        return [waiting.popleft() for _ in range(count)], rows


class _Simulation:
    """The event loop. At one instant, ends come before arrivals."""

    def __init__(
        self,
        graph: Graph,
        scenario: Scenario,
        profiles: Profiles,
        settings: Mapping[str, MemberSettings],
        instances: int,
        workers: int,
    ) -> None:
        count, steps = scenario.count, len(graph.steps)
        self._arrivals: list[float] = scenario.arrivals.tolist()
        self._needs = graph.needs
        self._dependents = [[at for at in range(steps) if step in graph.needs[at]] for step in range(steps)]
        self._first = [at for at in range(steps) if not graph.needs[at]]
        self._rows: list[list[int]] = [rows.tolist() for rows in scenario.rows]
        self._handover_s = profiles.step_ms / 1000
        self._stations = {name: _station(settings[name]) for name in graph.used if name in settings}
        self._station = [self._stations.get(name) for name in graph.members]
        self._python = [_python_s(graph, profiles, at) for at in range(steps)]
        spreads = [_spread(graph, profiles, settings, at) for at in range(steps)]
        # Less half the variance, a lognormal factor has mean 1, so that the profile's times stay the means.
        self._factors: list[list[float]] = [
            np.exp(spread * deviates - spread**2 / 2).tolist()
            for spread, deviates in zip(spreads, scenario.deviates, strict=True)
        ]
        self._missing = [[len(needs)] * count for needs in graph.needs]  # steps that each step still waits for
        self._left = [steps] * count  # steps that each request still waits for
        self._calls: dict[tuple[int, int], int] = {}  # of steps that make more than one call
        self._began = [[math.nan] * count for _ in range(steps)]
        self._done = [[math.nan] * count for _ in range(steps)]
        self._answered = [math.nan] * count
        self._heap: list[tuple[float, int, Callable[[float, Any], None], Any]] = []
        self._order = 0
        self._instances = instances
        self._occupied = 0
        self._idle_since = -math.inf
        self._cold = Cold.of(profiles.cold_ms)
        self._held: deque[int] = deque()
        self._workers = workers
        self._computing = 0
        self._computed_s = [0.0] * steps
        self._for_worker: deque[tuple[int, int]] = deque()  # steps and requests that wait for a worker
        self._late = 0
        self._limit_s = math.inf

    def run(self, limit_s: float) -> SimulationOutcome:
        """Runs until every request is answered, or too many are late."""
        arrivals, heap, pop = self._arrivals, self._heap, heapq.heappop
        self._limit_s = limit_s
        request, count = 0, len(arrivals)
        enough = _LATE_SHARE * count + 1  # one more, since the percentile is interpolated between two requests
        now = 0.0
        while (request < count or heap) and self._late <= enough:
            if heap and (request == count or heap[0][0] <= arrivals[request]):
                now, _, act, about = pop(heap)
                act(now, about)
            else:
                now = arrivals[request]
                self._arrive(now, request)
                request += 1
        return self._outcome(now, given_up=self._late > enough)

    def _outcome(self, now: float, *, given_up: bool) -> SimulationOutcome:
        return SimulationOutcome(
            latencies=np.asarray(self._answered) - np.asarray(self._arrivals),
            began=np.asarray(self._began),
            done=np.asarray(self._done),
            loads={
                name: SimulatedLoad(executions=station.executions, rows=station.rows, busy_s=station.busy_s)
                for name, station in self._stations.items()
            },
            python_s=tuple(self._computed_s),
            ended_s=now,
            given_up=given_up,
        )

    def _at(self, when: float, act: Callable[[float, Any], None], about: Any) -> None:
        self._order += 1  # events of the same instant happen in the order in which they were scheduled
        heapq.heappush(self._heap, (when, self._order, act, about))

    # --- requests ----------------------------------------------------------------------------------------------------

    def _arrive(self, now: float, request: int) -> None:
        if self._instances and self._occupied == self._instances:
            self._held.append(request)
        else:
            self._enter(now, request)

    def _enter(self, now: float, request: int) -> None:
        woken_s = 0.0 if self._occupied else self._cold.after(now - self._idle_since)
        self._occupied += 1
        if woken_s:
            self._at(now + woken_s, self._begin_first, request)
        else:
            self._begin_first(now, request)

    def _begin_first(self, now: float, request: int) -> None:
        for step in self._first:
            self._begin(now, step, request)

    def _begin(self, now: float, step: int, request: int) -> None:
        self._began[step][request] = now
        station, rows = self._station[step], self._rows[step][request]
        if rows and station:
            self._call(now, station, step, request, rows)
        elif rows and self._python[step]:
            self._compute(now, step, request)
        else:
            self._finish(now, (step, request))

    def _compute(self, now: float, step: int, request: int) -> None:
        """Gives a Python step to a worker, or queues it."""
        if self._workers and self._computing == self._workers:
            self._for_worker.append((step, request))
            return
        took = self._python[step] * self._factors[step][request]
        self._computing += 1
        self._computed_s[step] += took
        self._at(now + took, self._computed, (step, request))

    def _computed(self, now: float, about: tuple[int, int]) -> None:
        self._computing -= 1
        if self._for_worker:
            self._compute(now, *self._for_worker.popleft())
        self._finish(now, about)

    def _finish(self, now: float, about: tuple[int, int]) -> None:
        step, request = about
        self._done[step][request] = now
        for dependent in self._dependents[step]:
            missing = self._missing[dependent]
            missing[request] -= 1
            if not missing[request]:
                self._begin(now, dependent, request)
        self._left[request] -= 1
        if not self._left[request]:
            self._answer(now, request)

    def _answer(self, now: float, request: int) -> None:
        self._answered[request] = now
        self._late += now - self._arrivals[request] > self._limit_s
        self._occupied -= 1
        if not self._occupied:
            self._idle_since = now
        if self._held:
            self._at(now, self._enter, self._held.popleft())  # an event, because calls would recurse deeply

    # --- members -----------------------------------------------------------------------------------------------------

    def _call(self, now: float, station: _Station, step: int, request: int, rows: int) -> None:
        """Sends a step's rows to its member, in as few requests as possible."""
        most = station.max_batch
        if rows > most:
            whole, rest = divmod(rows, most)
            self._calls[step, request] = whole + bool(rest)
            station.waiting.extend([(now, most, step, request)] * whole)
            if rest:
                station.waiting.append((now, rest, step, request))
        else:
            station.waiting.append((now, rows, step, request))
        if station.idle:
            self._dispatch(now, station)

    def _dispatch(self, now: float, station: _Station) -> None:
        """Starts batches while an instance is idle."""
        while station.idle and station.waiting:
            batch, rows = station.take(now)
            if not batch:
                wake = station.waiting[0][0] + station.delay_s
                if wake != station.wakes_at:
                    station.wakes_at = wake
                    self._at(wake, self._dispatch, station)
                return
            _, _, step, request = batch[0]
            pause = now - station.idle.popleft()
            took = (station.seconds[rows] + station.cold.after(pause)) * self._factors[step][request]
            station.executions += 1
            station.rows += rows
            station.busy_s += took
            self._at(now + took, self._executed, (station, batch))

    def _executed(self, now: float, about: tuple[_Station, list[Item]]) -> None:
        station, batch = about
        station.idle.append(now)
        if station.waiting:
            self._dispatch(now, station)
        for _, _, step, request in batch:
            if (step, request) in self._calls:
                self._calls[step, request] -= 1
                if self._calls[step, request]:
                    continue
            if self._handover_s:
                self._at(now + self._handover_s, self._finish, (step, request))
            else:
                self._finish(now, (step, request))


def _station(settings: MemberSettings) -> _Station:
    return _Station(
        idle=deque([-math.inf] * settings.instances),
        max_batch=settings.max_batch,
        delay_s=settings.queue_delay_us / 1e6,
        seconds=settings.seconds,
        cold=Cold.of(settings.configuration.cold_ms),
    )


def _python_s(graph: Graph, profiles: Profiles, step: int) -> float:
    return 0.0 if graph.members[step] else (profiles.of(graph.steps[step]).ms or 0.0) / 1000


def _spread(graph: Graph, profiles: Profiles, settings: Mapping[str, MemberSettings], step: int) -> float:
    member = graph.members[step]
    if member:
        return settings[member].configuration.spread if member in settings else 0.0
    return profiles.of(graph.steps[step]).spread
