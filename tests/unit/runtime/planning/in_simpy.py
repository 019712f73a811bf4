"""The simulation's model once more, written in SimPy: one process per request, step and instance. Slow, and obvious."""

import math
from collections.abc import Generator, Mapping
from typing import Any

import numpy as np
import simpy

from shiplift.runtime.planning.profiles import Profiles
from shiplift.runtime.planning.scenario import Graph, Scenario
from shiplift.runtime.planning.settings import Settings

Steps = Generator[simpy.Event, Any, Any]


class Member:
    """A queue with a dynamic batcher, and its instances."""

    def __init__(self, env: simpy.Environment, settings: Settings) -> None:
        self.env, self.settings = env, settings
        self.queue: list[tuple[float, int, float, simpy.Event]] = []
        self.idle = settings.instances
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
                self.idle -= 1
                self.env.process(self._execute(batch))
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

    def _execute(self, batch: list[tuple[float, int, float, simpy.Event]]) -> Steps:
        rows = sum(rows for _, rows, _, _ in batch)
        yield self.env.timeout(self.settings.seconds[rows] * batch[0][2])
        self.idle += 1
        for *_, answered in batch:
            answered.succeed()
        self._wake()


def latencies(
    graph: Graph, scenario: Scenario, profiles: Profiles, settings: Mapping[str, Settings], instances: int = 0
) -> Any:
    """The latency of each request in s."""
    env = simpy.Environment()
    members = {name: Member(env, each) for name, each in settings.items()}
    pipeline = simpy.Resource(env, capacity=instances or scenario.count)
    took = np.full(scenario.count, math.nan)

    def spread_of(step: int) -> float:
        member = graph.members[step]
        return settings[member].configuration.spread if member else profiles.of(graph.steps[step]).spread

    def step_of(step: int, request: int, done: list[simpy.Event], worker: simpy.Resource) -> Steps:
        yield env.all_of([done[need] for need in graph.needs[step]])
        rows = int(scenario.rows[step][request])
        sigma = spread_of(step)
        factor = math.exp(sigma * scenario.deviates[step][request] - sigma**2 / 2)
        if rows and graph.members[step]:
            member, calls = members[graph.members[step]], []
            while rows > 0:
                calls.append(member.ask(min(rows, member.settings.max_batch), factor))
                rows -= member.settings.max_batch
            yield env.all_of(calls)
            if profiles.step_ms:
                yield env.timeout(profiles.step_ms / 1000)
        elif rows:
            with worker.request() as turn:
                yield turn
                yield env.timeout((profiles.of(graph.steps[step]).ms or 0) / 1000 * factor)
        done[step].succeed()

    def request_of(request: int) -> Steps:
        yield env.timeout(float(scenario.arrivals[request]))
        with pipeline.request() as turn:
            yield turn
            done, worker = [env.event() for _ in graph.steps], simpy.Resource(env, capacity=1)
            for step in range(len(graph.steps)):
                env.process(step_of(step, request, done, worker))
            yield env.all_of(done)
        took[request] = env.now - float(scenario.arrivals[request])

    for request in range(scenario.count):
        env.process(request_of(request))
    env.run()
    return took
