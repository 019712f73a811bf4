import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from shiplift.runtime.base.errors import MeasurementFailed
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.measurement import Trial
from shiplift.runtime.records.model import RecordedRequests
from shiplift.runtime.records.serving import ServingConfig
from shiplift.runtime.records.verdict import Packages
from shiplift.runtime.search.expectations import Expectations
from shiplift.runtime.search.finals import FINALISTS
from shiplift.runtime.search.goal import Goal
from shiplift.runtime.search.keys import digest_of
from shiplift.runtime.search.measuring import trial_key
from shiplift.runtime.search.planner import PATIENCE, Search
from shiplift.runtime.search.space import space_of
from shiplift.runtime.search.workbench import describe
from shiplift.runtime.spec.measurement import DynamicShape, LatencyTarget, Load, SearchSpace
from shiplift.runtime.spec.serving_settings import Queue, Serving
from tests.unit.examples import artifact, config, package, trial

SPACE = SearchSpace(max_batch=(1, 8, 32), queue_delay_us=(0, 500), instances=(1, 2), threads=(1, 2))
Measure = Callable[[Package, ServingConfig], Trial]


CORES = 4


def search(
    measure: Measure,
    space: SearchSpace = SPACE,
    serving: Serving | None = None,
    *packages: Package,
    **options: Any,
) -> tuple[Search, list[tuple[Package, ServingConfig]]]:
    """A finished search, and what it asked for."""
    options.setdefault("goal", Goal())
    finished = Search(space_of(packages or (package(config=config(8)),), space, serving or Serving(), CORES), **options)
    asked: list[tuple[Package, ServingConfig]] = []
    while (point := finished.ask()) is not None:
        asked.append((point.package, point.config))
        finished.tell(point, measure(point.package, point.config))
    return finished, asked


def machine(throughput: Callable[[ServingConfig], float], limit: float | None = None) -> Measure:
    """A machine whose p99 grows with the batch."""

    def measure(package: Package, config: ServingConfig) -> Trial:
        p99 = config.max_batch + config.queue_delay_us / 100
        return trial(
            precision=package.precision,
            config=config,
            throughput_per_s=throughput(config),
            p99_ms=p99,
            within_slo=limit is None or p99 <= limit,
        )

    return measure


def smooth(config: ServingConfig) -> float:
    """A throughput that grows with every parameter."""
    return (
        100
        * math.sqrt(config.max_batch)
        * config.instances
        * (1.2 if config.threads == 2 else 1)
        * (1.1 if config.queue_delay_us else 1)
    )


def test_the_best_configuration_of_a_smooth_machine_is_found() -> None:
    tuner, asked = search(machine(smooth))
    assert tuner.best()[1].config == config(32, 500, 2, 2)
    assert len(asked) < 24  # fewer than the space has


def test_a_machine_on_which_nothing_matters_is_searched_shortly() -> None:
    """A model so small that the server's front is the limit: noise is all that another trial would find."""
    noise = iter(np.random.default_rng(0).normal(0, 0.02, 100))
    _, asked = search(machine(lambda _: 4000 * math.exp(next(noise))))
    assert len(asked) <= 9  # of 24


def test_a_search_ends_at_the_same_point_whatever_an_hour_costs() -> None:
    searches = []
    for price in (0.001, 1000.0):
        goal = Goal(price_per_hour=price, cores=CORES)

        def measure(_: Package, at: ServingConfig, goal: Goal = goal) -> Trial:
            measured = trial(config=at, throughput_per_s=smooth(at))
            return measured.model_copy(update={"cost_per_million": goal.cost_per_million(measured)})

        searches.append([config for _, config in search(measure, goal=goal)[1]])
    assert searches[0] == searches[1]


@pytest.mark.parametrize(("spread", "again"), [(2.0, 0), (15.0, 2), (0.0, 2)])
def test_the_finals_end_when_the_best_is_certain(spread: float, again: int) -> None:
    rates = {8: 100.0, 32: 115.0}
    tuner, _ = search(lambda _, at: trial(config=at, throughput_per_s=rates.get(at.max_batch, 10.0)))
    points = [point for point in tuner.finalists() if point.config.max_batch > 1]
    for point in points[:2]:
        rate = 115.0 if point is points[0] else 100.0
        tuner.tell_final(point, trial(config=point.config, throughput_per_s=rate, spread_percent=spread))
    assert len(tuner.finalists()) == again


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))])
def test_a_tenth_of_a_large_space_is_enough_to_come_within_a_twentieth_of_the_best(seed: int) -> None:
    rng = np.random.default_rng(seed)
    space = SearchSpace(
        max_batch=(1, 2, 4, 8, 16, 32, 64),
        queue_delay_us=(0, 100, 500, 1000),
        instances=(1, 2, 3, 4),
        threads=(1, 2, 4),
    )
    best_batch, crowd, delay = rng.uniform(2, 5), rng.uniform(0.3, 0.7), rng.uniform(-0.1, 0.1)
    speed = {"fp32": 1.0, "int8": rng.uniform(0.8, 1.6)}

    def rate(package: Package, at: ServingConfig) -> float:
        used = min(at.instances * at.threads, 4) * crowd ** max(0.0, math.log2(at.instances * at.threads / 4))
        batch = 1 / (1 + ((math.log2(at.max_batch) - best_batch) / 3) ** 2)
        return float(1000 * speed[package.precision] * used**0.8 * batch * (1 + delay * (at.queue_delay_us > 0)))

    def measure(package: Package, at: ServingConfig) -> Trial:
        noisy = rate(package, at) * float(np.exp(rng.normal(0, 0.02)))
        return trial(precision=package.precision, config=at, throughput_per_s=noisy)

    packages = (package(config=config(8)), package(precision="int8", config=config(8)))
    every = list(space_of(packages, space, Serving(), CORES).points())
    finished, asked = search(measure, space, None, *packages)
    chosen, best = finished.best()
    assert len(asked) + FINALISTS <= len(every) // 10  # each finalist may be joined by the same one without a delay
    assert rate(chosen, best.config) >= 0.95 * max(rate(point.package, point.config) for point in every)


def test_the_best_within_the_latency_limit_is_found() -> None:
    tuner, _ = search(machine(smooth, limit=10), goal=Goal(p99_ms=10))
    assert tuner.best()[1].config == config(8, 0, 2, 2)


def test_a_package_that_is_dropped_makes_room_for_the_next_best() -> None:
    packages = (package(config=config(8)), package(precision="int8", config=config(8)))
    fast = {"fp32": 1.0, "int8": 2.0}

    def measure(package: Package, at: ServingConfig) -> Trial:
        return trial(precision=package.precision, config=at, throughput_per_s=fast[package.precision] * smooth(at))

    tuner, _ = search(measure, SPACE, None, *packages)
    for point in tuner.finalists():
        tuner.tell_final(point, measure(point.package, point.config))
    first, _ = tuner.best()
    assert first.precision == "int8"
    tuner.drop(first)
    assert tuner.best()[0].precision == "fp32"
    tuner.drop(packages[0])
    assert not tuner.measured
    assert tuner.unmeasured() is None


def test_where_nothing_is_within_the_limit_the_lowest_latency_is_taken() -> None:
    tuner, _ = search(machine(smooth, limit=0.5), goal=Goal(p99_ms=0.5))
    best = tuner.best()[1]
    assert (best.config.max_batch, best.config.queue_delay_us, best.within_slo) == (1, 0, False)


def search_told(*trials: Trial, goal: Goal | None = None) -> Search:
    """A search that was told trials of its space's first points."""
    running = Search(space_of((package(),), SPACE, Serving(), CORES), goal or Goal())
    for point, measured in zip(running.space.points(), trials, strict=False):
        running.tell(point, measured.model_copy(update={"config": point.config}))
    return running


def test_within_the_limit_beats_any_throughput_outside_it() -> None:
    tuner = search_told(trial(throughput_per_s=9000, within_slo=False), trial(throughput_per_s=10), goal=Goal(p99_ms=1))
    assert tuner.best()[1].throughput_per_s == 10


def test_a_cheaper_million_beats_a_faster_machine() -> None:
    goal = Goal(price_per_hour=1.0, cores=4)
    small, large = trial(throughput_per_s=400, config=config(8)), trial(throughput_per_s=1000, config=config(8, 0, 4))
    assert goal.cost_per_million(small) == pytest.approx(1 / 4 / 3600 / 400 * 1e6)
    assert goal.utility(small) > goal.utility(large)
    assert Goal().utility(small) < Goal().utility(large)


def test_memory_is_a_budget_like_latency() -> None:
    assert not Goal(memory_mb=100).within_budgets(5, 101)
    assert Goal(memory_mb=100, p99_ms=5).within_budgets(5, 100)
    assert not Goal(p99_ms=5).within_budgets(math.nan, 1)


def test_nothing_is_measured_twice() -> None:
    space = SearchSpace(max_batch=(8, 8, 1), instances=(1, 1, 2), threads=(1,), queue_delay_us=(0,))
    for at in (SPACE, space):
        _, asked = search(machine(smooth), at)
        keys = [(package.precision, config) for package, config in asked]
        assert len(keys) == len(set(keys))


def test_every_precision_is_measured_on_all_cores_first() -> None:
    """However little time there is, a search ends with no core idle."""
    fp32, int8 = package(config=config(8)), package(precision="int8", config=config(8))
    _, asked = search(machine(smooth), SPACE, None, fp32, int8)
    assert asked[:2] == [(fp32, config(8, 0, 2, 2)), (int8, config(8, 0, 2, 2))]
    assert (int8, config(8)) not in asked  # as packaged: for the best precision only
    assert (fp32, config(8)) in asked


@pytest.mark.parametrize(("limit", "first"), [(None, config(8, 0, 4, 1)), (10.0, config(8, 0, 1, 4))])
def test_a_limit_on_latency_starts_with_threads_instead_of_instances(limit: float | None, first: ServingConfig) -> None:
    space = SearchSpace(max_batch=(1, 8, 32))
    _, asked = search(machine(smooth), space, goal=Goal(p99_ms=limit))
    assert asked[0][1] == first


@pytest.mark.parametrize(
    ("cores", "instances", "threads"),
    [
        (1, {1, 2}, {1, 2}),
        (2, {1, 2}, {1, 2}),
        (6, {1, 2, 4, 6}, {1, 2, 4, 6}),
        (64, {1, 2, 4, 8}, {1, 2, 4, 8, 16, 32, 64}),
    ],
)
def test_instances_and_threads_follow_from_the_cores(cores: int, instances: set[int], threads: set[int]) -> None:
    space = space_of((package(),), SearchSpace(), Serving(), cores)
    assert ({count for count, _ in space.placements}, {count for _, count in space.placements}) == (instances, threads)
    assert all(space.placements[at][0] * space.placements[at][1] == cores for at in space.filling)


@pytest.mark.parametrize(
    ("cores", "steady", "limit", "first", "counts"),
    [
        (1, 1, None, config(8, 0, 1, 1), {1, 2}),  # one core
        (1, 1, 10.0, config(8, 0, 1, 1), {1, 2}),
        (2, 1, None, config(8, 0, 2, 1), {1, 2}),  # a quota of 1.5 CPUs: all of it, unless answers must be in time
        (2, 1, 10.0, config(8, 0, 1, 1), {1, 2}),
        (4, 3, 10.0, config(8, 0, 1, 3), {1, 2, 3, 4}),  # one of 3.5
        (16, 12, None, config(8, 0, 8, 2), {1, 2, 4, 8, 12, 16}),  # twelve fast cores and four slow ones
        (16, 12, 10.0, config(8, 0, 1, 12), {1, 2, 4, 8, 12, 16}),
    ],
)
def test_a_search_begins_with_the_cores_that_are_right_for_its_goal(
    cores: int, steady: int, limit: float | None, first: ServingConfig, counts: set[int]
) -> None:
    space = space_of((package(config=config(8)),), SearchSpace(), Serving(), cores, steady=steady)
    point = Search(space, Goal(p99_ms=limit)).ask()
    assert point is not None
    assert point.config == first
    assert {threads for _, threads in space.placements} == counts
    assert all(instances * threads <= max(2, 2 * cores) for instances, threads in space.placements)


def machine_of(**speeds: Mapping[tuple[int, int, int], float]) -> Expectations:
    """What is expected of precisions on ONNX Runtime: the rows per second by instances, threads and batch."""
    variants = {f"onnxruntime-{precision}": dict(cases) for precision, cases in speeds.items()}
    return Expectations(rates={"small": variants, "dense": variants})


def test_a_calibrated_machine_is_searched_from_where_it_is_fastest() -> None:
    """The faster precision is first, each on the placement and in the batch that it is computed fastest with."""
    packages = (package(config=config(8)), package(precision="int8", config=config(8)))
    known = machine_of(
        fp32={(2, 2, 8): 100, (4, 1, 8): 150, (4, 1, 32): 152},
        int8={(2, 2, 8): 200, (4, 1, 8): 150, (2, 2, 32): 300},
    )
    space = SearchSpace(max_batch=(1, 8, 32), instances=(2, 4), threads=(1, 2))
    _, asked = search(machine(smooth), space, None, *packages, expectations=known)
    assert [(each.precision, at) for each, at in asked[:2]] == [
        ("int8", config(32, 0, 2, 2)),
        ("fp32", config(8, 0, 4, 1)),  # a batch of 32 is hardly faster
    ]


def test_a_limit_on_latency_begins_as_without_a_calibration_but_in_its_order() -> None:
    packages = (package(config=config(8)), package(precision="int8", config=config(8)))
    known = machine_of(fp32={(4, 1, 8): 100}, int8={(4, 1, 8): 110})
    _, asked = search(machine(smooth), SearchSpace(), None, *packages, expectations=known, goal=Goal(p99_ms=10))
    assert [(each.precision, at) for each, at in asked[:2]] == [
        ("int8", config(8, 0, 1, 4)),
        ("fp32", config(8, 0, 1, 4)),
    ]


def test_a_precision_that_cannot_win_is_not_tried_unless_no_other_is_left() -> None:
    fp32, int8 = package(config=config(8)), package(precision="int8", config=config(8))
    known = machine_of(fp32={(1, 1, 1): 100}, int8={(1, 1, 1): 20})
    tuner, asked = search(machine(smooth), SPACE, None, fp32, int8, expectations=known)
    assert {each.precision for each, _ in asked} == {"fp32"}
    (why,) = tuner.untried()
    assert why.startswith("int8 on ONNX Runtime was not tried")
    tuner.drop(fp32)
    assert not tuner.measured
    last = tuner.unmeasured()
    assert last is not None
    assert last.package is int8
    tuner.tell(last, trial(precision="int8", config=last.config))
    assert tuner.best()[0] is int8
    assert tuner.untried() == ()


def test_a_precision_that_was_best_for_an_earlier_version_is_tried() -> None:
    packages = (package(config=config(8)), package(precision="int8", config=config(8)))
    known = machine_of(fp32={(1, 1, 1): 100}, int8={(1, 1, 1): 20})
    earlier = [("onnxruntime-int8", config(32, 0, 2, 2))]
    tuner, asked = search(machine(smooth), SPACE, None, *packages, expectations=known, warm_start=earlier)
    assert {each.precision for each, _ in asked} == {"fp32", "int8"}
    assert tuner.untried() == ()


def test_within_a_budget_of_memory_every_precision_is_tried() -> None:
    packages = (package(config=config(8)), package(precision="int8", config=config(8)))
    known = machine_of(fp32={(1, 1, 1): 100}, int8={(1, 1, 1): 20})
    tuner, asked = search(machine(smooth), SPACE, None, *packages, expectations=known, goal=Goal(memory_mb=500))
    assert {each.precision for each, _ in asked} == {"fp32", "int8"}
    assert tuner.untried() == ()


@pytest.mark.parametrize(("limit", "chosen"), [(None, 970.0), (100.0, 1000.0)])
def test_without_a_limit_on_latency_the_finals_choose_the_knee(limit: float | None, chosen: float) -> None:
    tuner = search_told(
        trial(throughput_per_s=1000, p99_ms=40), trial(throughput_per_s=970, p99_ms=10), goal=Goal(p99_ms=limit)
    )
    for point in tuner.finalists():
        measured = next(each for each in tuner.trials if each.config == point.config)
        tuner.tell_final(point, measured)
    assert tuner.best()[1].throughput_per_s == chosen


def test_the_knee_is_a_finalist_even_behind_many_that_are_a_little_faster() -> None:
    crowd = [trial(throughput_per_s=1000 - at, p99_ms=40) for at in range(FINALISTS + 2)]
    tuner = search_told(*crowd, trial(throughput_per_s=970, p99_ms=10))
    assert tuner.trials[-1].config in {point.config for point in tuner.finalists()}


def test_where_no_placement_fills_the_cores_the_one_that_uses_most_is_first() -> None:
    space = space_of((package(),), SearchSpace(instances=(1, 3), threads=(1,)), Serving(), CORES)
    assert [space.placements[at] for at in space.filling] == [(3, 1)]


def test_what_was_best_for_earlier_versions_is_measured_next() -> None:
    earlier = [
        ("onnxruntime-fp32", config(32, 500, 1, 2)),
        ("onnxruntime-int8", config(1)),
        ("onnxruntime-fp32", config(7)),
    ]
    _, asked = search(machine(smooth), warm_start=earlier)
    assert [at for _, at in asked[:2]] == [config(8, 0, 2, 2), config(32, 500, 1, 2)]


def test_the_search_finds_the_faster_precision() -> None:
    fp32, int8 = package(config=config(8)), package(precision="int8", config=config(8))

    def measure(package: Package, at: ServingConfig) -> Trial:
        factor = 2 if package is int8 else 1
        return trial(precision=package.precision, config=at, throughput_per_s=smooth(at) * factor)

    tuner, asked = search(measure, SPACE, None, fp32, int8)
    assert tuner.best()[0] is int8
    assert tuner.best()[1].config == config(32, 500, 2, 2)
    assert len(asked) < 48


def test_the_search_finds_the_faster_engine_for_the_batch_that_is_asked_for() -> None:
    """ONNX Runtime answers small batches faster, OpenVINO large ones."""
    ours, other = package(config=config(8)), package(engine="openvino", config=config(8))

    def measure(package: Package, at: ServingConfig) -> Trial:
        factor = 4.0 if at.max_batch > 8 else 0.2
        rate = smooth(at) * (factor if package is other else 1)
        return trial(engine=package.engine, config=at, throughput_per_s=rate)

    small = SPACE.model_copy(update={"max_batch": (1, 2, 8)})
    assert search(measure, small, None, ours, other)[0].best()[0] is ours
    assert search(measure, SPACE, None, ours, other)[0].best()[0] is other


def test_a_gain_within_the_noise_is_not_better() -> None:
    rates = (1000.0, 1019.0)
    assert search_told(*(trial(throughput_per_s=rate) for rate in rates)).best()[1].throughput_per_s == 1000
    assert search_told(*(trial(throughput_per_s=rate) for rate in (*rates, 1021.0))).best()[1].throughput_per_s == 1021


def test_finalists_are_those_that_short_windows_cannot_tell_apart() -> None:
    tuner = search_told(*(trial(throughput_per_s=rate) for rate in (500.0, 1000.0, 950.0, 100.0)))
    assert [point.config for point in tuner.finalists()] == [t.config for t in (tuner.trials[1], tuner.trials[2])]


def test_a_long_measurement_outweighs_a_short_one() -> None:
    tuner = search_told(*(trial(throughput_per_s=rate) for rate in (1000.0, 990.0)))
    first, second = tuner.finalists()
    tuner.tell_final(first, trial(config=first.config, throughput_per_s=900))
    tuner.tell_final(second, trial(config=second.config, throughput_per_s=980))
    assert tuner.best()[1].throughput_per_s == 980
    assert len(tuner.trials) == 4


def test_the_better_half_of_the_finalists_goes_on_and_the_median_counts() -> None:
    tuner = search_told(*[trial(throughput_per_s=1000)] * 4)
    first = tuner.finalists()
    for point, rate in zip(first, (1400.0, 900.0, 1010.0, 800.0), strict=True):
        tuner.tell_final(point, trial(config=point.config, throughput_per_s=rate))
    lucky, better = first[0], first[2]
    for rates in ({lucky.key: 900.0, better.key: 1000.0}, {lucky.key: 910.0, better.key: 1005.0}):
        now = tuner.finalists()
        assert {point.key for point in now} == set(rates)
        for point in now:
            tuner.tell_final(point, trial(config=point.config, throughput_per_s=rates[point.key]))
    assert (tuner.best()[1].config, tuner.best()[1].throughput_per_s) == (better.config, 1005)


def test_the_finals_end_when_one_finalist_is_left_or_there_was_none() -> None:
    tuner = search_told(trial(throughput_per_s=1000), trial(throughput_per_s=10))
    (only,) = tuner.finalists()
    tuner.tell_final(only, trial(config=only.config, error="died"))
    assert tuner.finalists() == []
    assert tuner.best()[1].throughput_per_s == 1000  # its short measurement
    assert search_told(trial(error="died")).finalists() == []


@pytest.mark.parametrize(("delayed", "chosen"), [(1040.0, 0), (1100.0, 500)])
def test_a_queue_delay_must_gain_enough(delayed: float, chosen: int) -> None:
    """At full load it may seem slightly better; at any other load each request pays for it."""
    placements = len(space_of((package(),), SPACE, Serving(), CORES).placements)
    tuner = search_told(*[trial(throughput_per_s=700)] * placements, trial(throughput_per_s=1000))
    finalists = list(tuner.finalists())
    assert [point.config.queue_delay_us for point in finalists] == [500, 0]
    for point, rate in zip(finalists, (delayed, 1000.0), strict=True):
        tuner.tell_final(point, trial(config=point.config, throughput_per_s=rate))
    assert tuner.best()[1].config.queue_delay_us == chosen


@pytest.mark.parametrize(("rate", "chosen"), [(1030.0, 40.0), (1100.0, 90.0)])
def test_of_equals_the_one_with_short_executions_wins_since_it_absorbs_an_overload(rate: float, chosen: float) -> None:
    tuner = search_told(*(trial(throughput_per_s=each) for each in (1000.0, 990.0)), goal=Goal(p99_ms=100))
    long, short = tuner.finalists()
    tuner.tell_final(long, trial(config=long.config, throughput_per_s=rate, compute_ms=90))
    tuner.tell_final(short, trial(config=short.config, throughput_per_s=1000, compute_ms=40))
    assert tuner.best()[1].compute_ms == chosen


def test_a_trial_over_its_limit_and_already_slower_is_pruned() -> None:
    tuner = search_told(trial(throughput_per_s=1000), goal=Goal(p99_ms=10))
    assert tuner.should_prune(trial(throughput_per_s=900, within_slo=False))
    assert not tuner.should_prune(trial(throughput_per_s=1100, within_slo=False))
    assert not search_told().should_prune(trial(throughput_per_s=900, within_slo=False))


def test_the_same_answers_give_the_same_questions() -> None:
    assert search(machine(smooth))[1] == search(machine(smooth))[1]


def test_no_more_threads_are_proposed_than_twice_the_cores() -> None:
    space = SearchSpace(instances=(1, 2, 4, 8, 16), threads=(1, 2, 4, 8, 16))
    _, asked = search(machine(lambda at: at.instances * at.threads), space)
    assert max(at.instances * at.threads for _, at in asked) == 8


def test_a_policed_queue_is_never_proposed_fewer_instances_than_it_needs() -> None:
    policed = Serving(queue=Queue(max_size=10))
    _, asked = search(
        machine(lambda at: 100 / at.instances),
        SearchSpace(instances=(1, 2, 4)),
        policed,
        package(config=config(8, 0, 2)),
    )
    assert {at.instances for _, at in asked} == {2, 4}


def test_configurations_that_fail_are_kept_and_never_chosen() -> None:
    def measure(_: Package, at: ServingConfig) -> Trial:
        if at.max_batch == 32:
            return trial(config=at, throughput_per_s=0, error="does not load")
        return trial(config=at, throughput_per_s=smooth(at))

    tuner, asked = search(measure)
    assert len(tuner.trials) == len(asked)
    assert {failed.config.max_batch for failed in tuner.trials if failed.error} == {32}
    assert tuner.best()[1].config == config(8, 500, 2, 2)


def test_a_search_in_which_everything_fails_ends_and_says_the_last_reason() -> None:
    tuner, asked = search(lambda _, at: trial(config=at, error="perf_analyzer died"))
    assert len(asked) <= PATIENCE + 4
    with pytest.raises(MeasurementFailed, match="no serving configuration could be measured: perf_analyzer died"):
        tuner.best()


def test_a_record_names_the_best_of_very_many_trials_in_the_order_they_were_made() -> None:
    space = SearchSpace(max_batch=tuple(range(1, 33)), queue_delay_us=(0, 500), instances=(1, 2), threads=(1,))
    tuner = Search(space_of((package(),), space, Serving(), CORES), Goal())
    for point in tuner.space.points():
        tuner.tell(point, trial(config=point.config, throughput_per_s=smooth(point.config)))
    reported = tuner.best_trials(64)
    assert (len(tuner.trials), len(reported)) == (128, 64)
    assert list(reported) == [trial for trial in tuner.trials if trial in reported]
    worst = min(trial.throughput_per_s for trial in reported)
    assert all(trial in reported for trial in tuner.trials if trial.throughput_per_s > worst)
    assert [best.error for best in search_told(trial(error="died"), trial()).best_trials(1)] == [""]


def test_a_trial_is_found_again_by_its_package_and_its_configuration() -> None:
    packages = package(), package(repository=artifact("9", kind="tree"))
    keys = {
        trial_key(packaged, at)
        for packaged in packages
        for at in (config(1), config(8), config(8, 500), config(8, 0, 2))
    }
    assert len(keys) == 8
    assert describe(config(8, 500, 2, 1)) == "batch 8, delay 500 us, 2 x 1 thread"


@pytest.mark.parametrize(
    "change",
    [
        {"packages": Packages(target="t", packages=(package(repository=artifact("9")),), checks=())},
        {"load": Load(protocol="http")},
        {"load": Load(seed=1)},
        {"load": Load(batch=2)},
        {"load": Load(shapes=(DynamicShape(input="input", low=1, high=9),))},
        {"recorded": RecordedRequests(file=artifact("8"), name="requests.npz")},
        {"space": SearchSpace(window_ms=500)},
        {"space": SearchSpace(max_concurrency=8)},
        {"space": SearchSpace(memory_mb=100)},
        {"latency_target": LatencyTarget(p99_ms=5)},
        {"hardware": [["avx2"], 8]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_trials_measured_differently_are_not_reused(change: dict[str, Any]) -> None:
    """A trial depends on all of these: they decide its concurrency, and whether it was within the limits."""
    arguments: dict[str, Any] = {
        "packages": Packages(target="t", packages=(package(),), checks=()),
        "load": Load(),
        "recorded": RecordedRequests(),
        "space": SearchSpace(),
        "latency_target": LatencyTarget(),
        "hardware": [["avx2"], 4],
    }
    assert digest_of(**arguments) == digest_of(**arguments)
    assert digest_of(**arguments) != digest_of(**arguments | change)


def test_a_longer_search_reuses_the_trials_of_a_shorter_one() -> None:
    packages = Packages(target="t", packages=(package(),), checks=())
    digests = {
        digest_of(packages, Load(), RecordedRequests(), space, LatencyTarget(), [])
        for budget in (5, 50)
        for threads in ((1,), (1, 2))
        for space in [SearchSpace(time_budget_s=budget, threads=threads)]
    }
    assert len(digests) == 1
