"""The simulation's model once more, written in SimPy: one process per request, step and instance. Slow but obvious."""

import math
from collections.abc import Generator, Mapping
from typing import Any

import numpy as np
import simpy

from shiplift.runtime.planning.profiles import Profiles
from shiplift.runtime.planning.scenario import Graph, Scenario
from shiplift.runtime.planning.settings import MemberSettings

Steps = Generator[simpy.Event, Any, Any]


def longer_s(pause_s: float, cold_ms: Mapping[float, float]) -> float:
    """By how much what follows a pause takes longer."""
    known = sorted({0.0: 0.0, **cold_ms}.items())
    return float(np.interp(min(1000 * pause_s, 1e9), [at for at, _ in known], [ms for _, ms in known])) / 1000


class Member:
    """A queue with a dynamic batcher, and its instances."""

    def __init__(self, env: simpy.Environment, settings: MemberSettings) -> None:
        self.env, self.settings = env, settings
        self.queue: list[tuple[float, int, float, simpy.Event]] = []
        self.idle = [-math.inf] * settings.instances  # since when; the one that is idle longest is next
        self.changed = env.event()
        env.process(self._batcher())

    def ask(self, rows: int, factor: float) -> simpy.Event:
        answered = self.env.event()
        self.queue.append((self.env.now, rows, factor, answered))
        self._wake()
        return answered

    def _wake(self) -> None:
        if not self.changed.triggered:
            self.changed.succeed()

    def _batcher(self) -> Steps:
        while True:
            batch, full = self._next()
            oldest = self.queue[0][0] + self.settings.queue_delay_us / 1e6 if self.queue else math.inf
            if self.idle and batch and (full or self.env.now >= oldest):
                del self.queue[: len(batch)]
                cold_s = longer_s(self.env.now - self.idle.pop(0), self.settings.configuration.cold_ms)
                self.env.process(self._execute(batch, cold_s))
                continue
            self.changed = self.env.event()
            waits = [self.changed]
            if self.idle and batch:
                waits.append(self.env.timeout(oldest - self.env.now))
            yield self.env.any_of(waits)

    def _next(self) -> tuple[list[tuple[float, int, float, simpy.Event]], bool]:
        """What fits into the next batch, and whether more would not."""
        batch: list[tuple[float, int, float, simpy.Event]] = []
        for item in self.queue:
            if sum(rows for _, rows, _, _ in batch) + item[1] > self.settings.max_batch:
                return batch, True
            batch.append(item)
        return batch, sum(rows for _, rows, _, _ in batch) == self.settings.max_batch

    def _execute(self, batch: list[tuple[float, int, float, simpy.Event]], cold_s: float) -> Steps:
        rows = sum(rows for _, rows, _, _ in batch)
        yield self.env.timeout((self.settings.seconds[rows] + cold_s) * batch[0][2])
        self.idle.append(self.env.now)
        for *_, answered in batch:
            answered.succeed()
        self._wake()


class Pipeline:
    """A pipeline with its members, as many instances as it may work on requests at once, and its workers."""

    def __init__(
        self,
        graph: Graph,
        scenario: Scenario,
        profiles: Profiles,
        settings: Mapping[str, MemberSettings],
        instances: int,
        workers: int,
    ) -> None:
        self.env = simpy.Environment()
        self.graph, self.scenario, self.profiles = graph, scenario, profiles
        self.members = {name: Member(self.env, each) for name, each in settings.items()}
        self.instances = simpy.Resource(self.env, capacity=instances or scenario.count)
        self.workers = simpy.Resource(self.env, capacity=workers or scenario.count * len(graph.steps))
        self.inside, self.idle_since = 0, -math.inf
        self.took = np.full(scenario.count, math.nan)

    def factor(self, step: int, request: int) -> float:
        member = self.graph.members[step]
        measured = self.members[member].settings.configuration if member else self.profiles.of(self.graph.steps[step])
        return math.exp(measured.spread * self.scenario.deviates[step][request] - measured.spread**2 / 2)

    def request(self, request: int) -> Steps:
        yield self.env.timeout(float(self.scenario.arrivals[request]))
        with self.instances.request() as turn:
            yield turn
            cold_s = 0.0 if self.inside else longer_s(self.env.now - self.idle_since, self.profiles.cold_ms)
            self.inside += 1
            if cold_s:
                yield self.env.timeout(cold_s)
            done = [self.env.event() for _ in self.graph.steps]
            for step in range(len(self.graph.steps)):
                self.env.process(self.step(step, request, done))
            yield self.env.all_of(done)
            self.inside -= 1
            self.idle_since = self.env.now
        self.took[request] = self.env.now - float(self.scenario.arrivals[request])

    def step(self, step: int, request: int, done: list[simpy.Event]) -> Steps:
        yield self.env.all_of([done[need] for need in self.graph.needs[step]])
        if rows := int(self.scenario.rows[step][request]):
            factor, member = self.factor(step, request), self.graph.members[step]
            yield from self.ask(member, rows, factor) if member else self.call(step, factor)
        done[step].succeed()

    def ask(self, name: str, rows: int, factor: float) -> Steps:
        member, calls = self.members[name], []
        while rows > 0:
            calls.append(member.ask(min(rows, member.settings.max_batch), factor))
            rows -= member.settings.max_batch
        yield self.env.all_of(calls)
        if self.profiles.step_ms:
            yield self.env.timeout(self.profiles.step_ms / 1000)

    def call(self, step: int, factor: float) -> Steps:
        with self.workers.request() as turn:
            yield turn
            yield self.env.timeout((self.profiles.of(self.graph.steps[step]).ms or 0) / 1000 * factor)


def latencies(
    graph: Graph,
    scenario: Scenario,
    profiles: Profiles,
    settings: Mapping[str, MemberSettings],
    instances: int = 0,
    workers: int = 0,
) -> Any:
    """The latency of each request in s."""
    pipeline = Pipeline(graph, scenario, profiles, settings, instances, workers)
    for request in range(scenario.count):
        pipeline.env.process(pipeline.request(request))
    pipeline.env.run()
    return pipeline.took
