"""A plan: each member's settings, the predicted performance of the whole, and its cost."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shiplift.runtime.base.errors import NoPlan
from shiplift.runtime.planning.arrivals import Floats
from shiplift.runtime.planning.options import Problem
from shiplift.runtime.planning.scenario import PYTHON, Graph, Scenario, draw_again, worst_rows
from shiplift.runtime.planning.search import SettingsSearch
from shiplift.runtime.planning.settings import MemberSettings
from shiplift.runtime.planning.simulation import SimulationOutcome, simulate
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.precision import Variant
from shiplift.runtime.records.serving import ServingConfig

CONFIRMING = 20_000  # requests; different ones from those of the search
MOST_INSTANCES = 64  # of a pipeline and of its workers: the limits of its spec
_ROUNDS = 5
_CLOSER = 0.99


class PlannedMember(Variant):
    """A member's settings, and their predicted performance.

    `utilisation` is the share of the time that its instances are busy, `mean_batch` the rows of an execution.
    `latency_share` is its share of the requests' time, along each request's longest path through the graph.
    """

    name: str
    config: ServingConfig
    cores: float
    memory_mb: float
    utilisation: float
    mean_batch: float
    latency_share: float


class PlannedStep(Record):
    """A Python step: how many cores it keeps busy on average, and its share of the requests' time."""

    name: str
    busy_cores: float
    latency_share: float


class Plan(Record):
    """The settings of a pipeline, and the latency predicted for requests other than those of the search.

    `cores` and `memory_mb` cover the members' instances, the `workers` that run its Python steps (0: it has none), and
    the pipeline's own `instances` in BLS (0: an ensemble, which has none). `worst_case_cores` is the cost if every
    member had as many instances as the busiest one needs, with all conditions true and all loops at their longest.
    `waiting_share` and `other_share` are the shares of the requests' time that pass while they wait for one of the
    pipeline's instances, and outside of all steps.
    """

    pipeline: str
    rate_per_s: float
    cv: float
    limit_p99_ms: float
    p50_ms: float
    p99_ms: float
    cores: float
    memory_mb: float
    instances: int
    workers: int = 0
    members: tuple[PlannedMember, ...]
    python: tuple[PlannedStep, ...] = ()
    waiting_share: float = 0.0
    other_share: float = 0.0
    worst_case_cores: float
    worst_case_memory_mb: float
    simulations: int
    seed: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Confirmed:
    """The chosen settings, the workers and instances that they need, and what other requests experienced."""

    settings: dict[str, MemberSettings]
    workers: int
    instances: int
    scenario: Scenario
    outcome: SimulationOutcome
    simulations: int


def plan(problem: Problem, notes: tuple[str, ...] = ()) -> Plan:
    """The cheapest settings found that hold the problem's limit. Equal problems have equal plans.

    Raises:
        NoPlan: no settings were found; the message says which came nearest, and why.
    """
    if problem.limit_ms <= 0:
        raise NoPlan(
            f"the limit of {problem.p99_ms:g} ms is less than an answer takes without any step, "
            f"{problem.profiles.request_ms:g} ms (`request_ms` in the profiles)",
            do="Raise --p99-ms.",
        )
    return _described(problem, _confirmed(problem), notes)


def _confirmed(problem: Problem) -> Confirmed:
    """Settings that also hold the limit for other requests. If they don't, the search's limit is tightened.

    The search compares hundreds of choices on the same requests, so its winner may owe its place to luck with those.
    """
    graph, profiles = problem.graph, problem.profiles
    scenario = draw_again(problem.spec, graph, profiles, problem.arrivals, count=CONFIRMING, seed=problem.seed + 1)
    search, measured_ms = SettingsSearch(problem), math.inf
    for _ in range(_ROUNDS):
        settings = search.settings(search.cheapest())
        outcome = simulate(graph, scenario, profiles, settings)
        measured_ms = outcome.percentile_ms(99)
        if measured_ms <= problem.limit_ms:
            workers = _workers(problem, scenario, settings) if graph.steps_of(PYTHON) else 0
            instances = _instances(problem, scenario, settings, workers) if graph.bls else 0
            if instances or workers:
                outcome = simulate(graph, scenario, profiles, settings, instances=instances, workers=workers)
            return Confirmed(
                settings=settings,
                workers=workers,
                instances=instances,
                scenario=scenario,
                outcome=outcome,
                simulations=search.simulations,
            )
        search.tighten(max(0.7, _CLOSER * problem.limit_ms / measured_ms))
    raise NoPlan(
        f"settings that seemed to hold {problem.what} had {measured_ms + profiles.request_ms:.4g} ms with other "
        "requests",
        do="Raise --p99-ms a little: the limit is at the edge of what the members can do.",
    )


def _workers(problem: Problem, scenario: Scenario, settings: dict[str, MemberSettings]) -> int:
    """The fewest workers for Python steps that hold the limit.

    Raises:
        NoPlan: even the most that a pipeline may have are too few.
    """

    def p99_ms(workers: int) -> float:
        return simulate(
            problem.graph, scenario, problem.profiles, settings, workers=workers, limit_ms=problem.limit_ms
        ).percentile_ms(99)

    return _fewest(
        problem,
        p99_ms,
        f"with {MOST_INSTANCES} Python steps at once, the most that its `workers` may be",
        "make its Python steps faster, or do less in them",
    )


def _instances(problem: Problem, scenario: Scenario, settings: dict[str, MemberSettings], workers: int) -> int:
    """The fewest instances of the pipeline that hold the limit.

    Raises:
        NoPlan: even the most that a pipeline may have are too few.
    """

    def p99_ms(instances: int) -> float:
        return simulate(
            problem.graph,
            scenario,
            problem.profiles,
            settings,
            instances=instances,
            workers=workers,
            limit_ms=problem.limit_ms,
        ).percentile_ms(99)

    most = f"with {MOST_INSTANCES} requests in the pipeline at once, the most that its `instances` may be"
    return _fewest(problem, p99_ms, most, "make the graph static, so that it runs as an ensemble")


def _fewest(problem: Problem, p99_ms: Callable[[int], float], most: str, advice: str) -> int:
    """The smallest number that holds the limit, found by halving.

    Raises:
        NoPlan: even the largest number does not.
    """
    low, high = 0, MOST_INSTANCES
    if p99_ms(high) > problem.limit_ms:
        raise NoPlan(
            f"the members hold {problem.what}, but not {most}", do=f"Lower the rate or raise the limit, or {advice}."
        )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if p99_ms(middle) <= problem.limit_ms else (middle, high)
    return high


# --- what a plan says -----------------------------------------------------------------------------------------------


def _described(problem: Problem, confirmed: Confirmed, notes: tuple[str, ...]) -> Plan:
    graph, profiles, outcome = problem.graph, problem.profiles, confirmed.outcome
    request_ms = profiles.request_ms
    total_s = float(outcome.latencies.sum()) + len(outcome.latencies) * request_ms / 1000
    critical = critical_s(graph, outcome)
    spent = critical / total_s
    waiting = float((outcome.latencies.sum() - critical.sum()) / total_s)
    worst = worst_case(problem, confirmed.settings)
    own_mb = confirmed.instances * profiles.pipeline_mb + confirmed.workers * profiles.worker_mb
    return Plan(
        pipeline=problem.spec.name,
        rate_per_s=problem.arrivals.rate_per_s,
        cv=problem.arrivals.cv,
        limit_p99_ms=problem.p99_ms,
        p50_ms=outcome.percentile_ms(50) + request_ms,
        p99_ms=outcome.percentile_ms(99) + request_ms,
        cores=sum(settings.cores for settings in confirmed.settings.values()) + confirmed.workers,
        memory_mb=sum(settings.memory_mb for settings in confirmed.settings.values()) + own_mb,
        instances=confirmed.instances,
        workers=confirmed.workers,
        members=tuple(
            _member(name, settings, outcome, float(spent[graph.steps_of(name)].sum()))
            for name, settings in confirmed.settings.items()
        ),
        python=tuple(
            PlannedStep(
                name=graph.steps[at],
                latency_share=float(spent[at]),
                busy_cores=outcome.python_s[at] / outcome.ended_s,
            )
            for at in graph.steps_of(PYTHON)
        ),
        waiting_share=waiting,
        other_share=max(0.0, 1 - float(spent.sum()) - waiting),
        worst_case_cores=sum(settings.cores for settings in worst.values()) + confirmed.workers,
        worst_case_memory_mb=sum(settings.memory_mb for settings in worst.values()) + own_mb,
        simulations=confirmed.simulations,
        seed=problem.seed,
        notes=notes,
    )


def _member(name: str, settings: MemberSettings, outcome: SimulationOutcome, share: float) -> PlannedMember:
    load = outcome.loads[name]
    return PlannedMember(
        name=name,
        engine=settings.configuration.engine,
        precision=settings.configuration.precision,
        config=settings.serving,
        cores=settings.cores,
        memory_mb=settings.memory_mb,
        utilisation=load.busy_s / (settings.instances * outcome.ended_s),
        mean_batch=load.rows / load.executions if load.executions else 0.0,
        latency_share=share,
    )


def critical_s(graph: Graph, outcome: SimulationOutcome) -> Floats:
    """The time that all requests together spent in each step, along each request's longest path through the graph."""
    done, took = outcome.done, outcome.done - outcome.began
    requests = np.arange(done.shape[1])
    on_way = np.zeros(done.shape, dtype=np.bool_)
    on_way[np.argmax(done, axis=0), requests] = True
    for step in reversed(range(len(graph.steps))):
        if graph.needs[step]:
            needs = np.array(graph.needs[step])
            last = needs[np.argmax(done[needs], axis=0)]
            here = on_way[step]
            on_way[last[here], requests[here]] = True
    return np.asarray((took * on_way).sum(axis=1))


def worst_case(problem: Problem, settings: dict[str, MemberSettings]) -> dict[str, MemberSettings]:
    """The same settings, but each member with as many instances as the busiest one needs in the worst case.

    The worst case has all conditions true and all loops at their longest. Instances count as if they could be busy all
    the time, so this is a lower bound on the cost of such a provisioning.
    """
    rate = problem.arrivals.rate_per_s
    needed = [
        math.ceil(rate * rows * settings[member].instances / settings[member].rows_per_s)
        for member, rows in worst_rows(problem.graph, problem.profiles).items()
    ]
    most = max((*needed, *(each.instances for each in settings.values())), default=1)
    return {member: each.model_copy(update={"instances": most}) for member, each in settings.items()}
