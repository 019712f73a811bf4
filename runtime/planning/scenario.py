"""A pipeline's graph, and what happens to each request in it: drawn once, so that all settings meet the same fate.

These common random numbers make candidates comparable: a difference between two of them is real, not chance. Each
quantity has a random stream of its own, so that drawing more of one changes no other.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shiplift.runtime.composition import wiring
from shiplift.runtime.planning.arrivals import Arrivals, Floats
from shiplift.runtime.planning.profiles import Profiles, StepProfile
from shiplift.runtime.spec.pipeline import PipelineSpec, Step

Counts = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
PYTHON = ""  # the member of a step that runs a Python function instead


@dataclass(frozen=True, kw_only=True)
class Graph:
    """The steps of a pipeline, each after those that it waits for; `needs` has their numbers.

    `members` is the member that a step runs, "" for Python. `bls`: a request occupies one of the pipeline's instances
    until it is answered.
    """

    steps: tuple[str, ...]
    needs: tuple[tuple[int, ...], ...]
    members: tuple[str, ...]
    bls: bool

    def steps_of(self, member: str) -> list[int]:
        """The numbers of the steps that run a member."""
        return [at for at, name in enumerate(self.members) if name == member]

    @property
    def used(self) -> tuple[str, ...]:
        """The members that steps run, once each."""
        return tuple(dict.fromkeys(name for name in self.members if name))


def graph_of(spec: PipelineSpec, *, bls: bool) -> Graph:
    """The graph of a pipeline that has been checked."""
    needs = wiring.needs(spec)
    order = wiring.order(needs)
    places = {name: at for at, name in enumerate(order)}
    return Graph(
        steps=order,
        needs=tuple(tuple(sorted(places[before] for before in needs[name])) for name in order),
        members=tuple(spec.steps[name].member for name in order),
        bls=bls,
    )


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Requests: the arrival time of each (s), and by step its number of rows (0: the step does not run) and its chance.

    A Python step has 1 row where it runs. `deviates` are standard normal: they make an execution's factor.
    """

    arrivals: Floats
    rows: tuple[Counts, ...]
    deviates: tuple[Floats, ...]

    @property
    def count(self) -> int:
        """How many requests there are."""
        return len(self.arrivals)

    @property
    def duration_s(self) -> float:
        """The time from the start to the last arrival."""
        return float(self.arrivals[-1])

    def first(self, count: int) -> "Scenario":
        """Only the first `count` requests."""
        return Scenario(
            arrivals=self.arrivals[:count],
            rows=tuple(rows[:count] for rows in self.rows),
            deviates=tuple(deviates[:count] for deviates in self.deviates),
        )

    def followed_by(self, other: "Scenario") -> "Scenario":
        """These requests, followed by those of `other` after a mean pause."""
        start_s = self.duration_s * (1 + 1 / self.count)
        return Scenario(
            arrivals=np.concatenate([self.arrivals, start_s + other.arrivals]),
            rows=tuple(map(np.concatenate, zip(self.rows, other.rows, strict=True))),
            deviates=tuple(map(np.concatenate, zip(self.deviates, other.deviates, strict=True))),
        )

    def rows_per_s(self, graph: Graph, member: str) -> float:
        """How many rows a member gets per second, on average."""
        return sum(float(self.rows[at].sum()) for at in graph.steps_of(member)) / self.duration_s


def draw(
    spec: PipelineSpec, graph: Graph, profiles: Profiles, arrivals: Arrivals, *, count: int, seed: int
) -> Scenario:
    """Draws a scenario of `count` requests, or of all recorded ones."""
    times = arrivals.times(count, _stream(seed, "arrivals"))
    count = len(times)
    tensors = {tensor: np.ones(count, dtype=np.bool_) for tensor in spec.inputs}  # whether each request has rows of it
    rows = []
    for name in graph.steps:
        step, profile = spec.steps[name], profiles.of(name)
        runs = _holds(step, profile, count, seed)
        asked = _counts(profile, count, _stream(seed, f"rows of {name}"))
        if step.member:
            asked = np.where(np.logical_and.reduce([tensors[tensor] for tensor in step.inputs.values()]), asked, 0)
        rows.append(np.where(runs, asked, 0))
        tensors |= _given(step, runs, asked > 0, tensors)
    deviates = tuple(_stream(seed, f"time of {name}").standard_normal(count) for name in graph.steps)
    return Scenario(arrivals=times, rows=tuple(rows), deviates=deviates)


def draw_again(
    spec: PipelineSpec, graph: Graph, profiles: Profiles, arrivals: Arrivals, *, count: int, seed: int
) -> Scenario:
    """Draws a scenario of at least `count` requests. Recorded ones repeat, with other chances each time.

    A 99th percentile of a few thousand requests depends on which of them meet a condition: by 7 % for 2,400 requests.
    """
    scenario = draw(spec, graph, profiles, arrivals, count=count, seed=seed)
    while scenario.count < count:
        seed += 1
        scenario = scenario.followed_by(draw(spec, graph, profiles, arrivals, count=count, seed=seed))
    return scenario


def worst_rows(graph: Graph, profiles: Profiles) -> dict[str, int]:
    """The rows that each member gets for one request if all conditions hold and all loops have their most rows."""
    most = dict.fromkeys(graph.used, 0)
    for name, member in zip(graph.steps, graph.members, strict=True):
        if member:
            most[member] += max(profiles.of(name).rows or {1: 1.0})
    return most


def _stream(seed: int, what: str) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(what.encode())])


def _holds(step: Step, profile: StepProfile, count: int, seed: int) -> Flags:
    """Whether the step's condition holds. Conditions on one tensor share one random number.

    `below` takes it from below and the others take it from above, so that opposite conditions exclude each other.
    """
    if step.when is None:
        return np.ones(count, dtype=np.bool_)
    chance = _stream(seed, f"condition on {step.when.tensor}").random(count)
    low = step.when.below is not None
    return chance < profile.probability if low else chance >= 1 - profile.probability


def _counts(profile: StepProfile, count: int, generator: np.random.Generator) -> Counts:
    weights = profile.rows or {1: 1.0}
    values = np.array(sorted(weights), dtype=np.int64)
    shares = np.array([weights[int(value)] for value in values])
    chances = generator.random(count)
    return values[np.searchsorted(np.cumsum(shares / shares.sum())[:-1], chances, side="right")]


def _given(step: Step, runs: Flags, has_rows: Flags, tensors: Mapping[str, Flags]) -> dict[str, Flags]:
    """Which of the step's tensors have rows: its own where it runs, its substitutes where it does not, or none."""
    nothing = np.zeros(len(runs), dtype=np.bool_)
    return {
        tensor: np.where(runs, has_rows, tensors[step.otherwise[tensor]] if tensor in step.otherwise else nothing)
        for tensor in step.gives
    }
