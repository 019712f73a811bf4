"""How a member could be served: its measured configurations, with batches and instances that can keep up."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pydantic import Field

from shiplift.runtime.base.errors import NoPlan
from shiplift.runtime.planning.arrivals import Arrivals
from shiplift.runtime.planning.profiles import MemberConfiguration, Profiles
from shiplift.runtime.planning.scenario import Graph, Scenario
from shiplift.runtime.planning.settings import MemberSettings
from shiplift.runtime.records.base import Record
from shiplift.runtime.spec.pipeline import PipelineSpec

_BUSIEST = 0.98  # of the time: the queue of a busier member would grow during most of any finite simulation


class Grid(Record):
    """What is combined with each configuration; batches larger than the configuration's own are left out.

    The number of instances ranges from the fewest that can keep up to half as many more, but at least `spare` more.
    """

    max_batch: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128)
    queue_delay_us: tuple[int, ...] = (0,)
    spare: int = Field(2, ge=0)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What is planned: a pipeline under its arrivals, with a limit on its 99th percentile in ms.

    `least_batch` is the smallest `max_batch` that a member may have for its edges to fit.
    """

    spec: PipelineSpec
    graph: Graph
    profiles: Profiles
    arrivals: Arrivals
    p99_ms: float
    grid: Grid = field(default_factory=Grid)
    seed: int = 0
    least_batch: Mapping[str, int] = field(default_factory=dict)

    @property
    def limit_ms(self) -> float:
        """The part of the limit that is left for the pipeline's steps."""
        return self.p99_ms - self.profiles.request_ms

    @property
    def what(self) -> str:
        """The limit and the arrivals, for people."""
        return f"a p99 of {self.p99_ms:g} ms at {self.arrivals.rate_per_s:.4g}/s with CV {self.arrivals.cv:.3g}"


def options_of(problem: Problem, member: str, scenario: Scenario) -> tuple[MemberSettings, ...]:
    """All settings with which a member could be served, cheapest first.

    Raises:
        NoPlan: none keeps up with the arrivals, or none takes the requests' rows.
    """
    rate, least = scenario.rows_per_s(problem.graph, member), _least_batch(problem, member)
    ways: dict[object, list[MemberConfiguration]] = {}
    for configuration in sorted(problem.profiles.members[member], key=lambda configuration: configuration.instances):
        ways.setdefault(configuration.way, []).append(configuration)
    options = [option for way in ways.values() for option in _of_way(problem.grid, way, rate, least)]
    if not options:
        raise NoPlan(
            f"no configuration of {member!r} keeps up: it gets {rate:.4g} rows/s, in requests of up to {least}, "
            f"and completes at most {_most(problem.profiles.members[member]):.4g} rows/s",
            do="Raise its `max_batch` or `most_instances`, measure a faster configuration, or plan for a lower rate.",
        )
    return tuple(sorted(options, key=lambda option: option.cost))


def _of_way(grid: Grid, way: list[MemberConfiguration], rate: float, least: int) -> Iterator[MemberSettings]:
    """The options of configurations that differ only in the number of instances that was measured."""
    largest = max(configuration.max_batch for configuration in way)
    for size in sorted({size for size in (*grid.max_batch, largest) if least <= size <= largest}):
        for delay in grid.queue_delay_us if size > 1 else (0,):
            fewest = 0
            for instances in range(1, max(configuration.most_instances for configuration in way) + 1):
                option = MemberSettings(
                    configuration=_measured_with(way, instances),
                    max_batch=size,
                    queue_delay_us=delay,
                    instances=instances,
                )
                if option.rows_per_s * _BUSIEST < rate:
                    continue
                fewest = fewest or instances
                if instances > fewest + max(grid.spare, math.ceil(fewest / 2)):
                    break
                yield option


def _measured_with(way: list[MemberConfiguration], instances: int) -> MemberConfiguration:
    """The configuration that was measured with this many instances, or else with the next fewer."""
    return next((each for each in reversed(way) if each.instances <= instances), way[0])


def _most(configurations: tuple[MemberConfiguration, ...]) -> float:
    return max(
        MemberSettings(configuration=each, max_batch=each.max_batch, instances=each.most_instances).rows_per_s
        for each in configurations
    )


def _least_batch(problem: Problem, member: str) -> int:
    """The most rows that the member gets in one request: only a loop's rows are split."""
    steps = problem.spec.steps
    asked = max(
        (
            max(problem.profiles.of(name).rows or {1: 1.0})
            for name, step in steps.items()
            if step.member == member and step.for_each is None
        ),
        default=1,
    )
    return max(asked, problem.least_batch.get(member, 1))
