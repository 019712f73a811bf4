import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shiplift.runtime.base.errors import MeasurementFailed
from shiplift.runtime.records.measurement import Trial
from shiplift.runtime.records.serving import Package, ServingConfig
from shiplift.runtime.records.verdict import Packages
from shiplift.runtime.search.finals import FINALISTS
from shiplift.runtime.search.goal import Goal
from shiplift.runtime.search.planner import PATIENCE, Search
from shiplift.runtime.search.space import space_of
from shiplift.runtime.search.workbench import short
from shiplift.runtime.spec.measurement import LatencyTarget, Load, SearchSpace
from shiplift.runtime.spec.serving import Queue, Serving
from shiplift.steps.tune import _digest, _trial_key
from tests.unit.examples import artifact, config, package, trial

SPACE = SearchSpace(max_batch=(1, 8, 32), queue_delay_us=(0, 500), instances=(1, 2), threads=(1, 2))
Measure = Callable[[Package, ServingConfig], Trial]


CORES = 4


def search(
    measure: Measure, space: SearchSpace = SPACE, serving: Serving | None = None, *packages: Package,
    **given: Any,
) -> tuple[Search, list[tuple[Package, ServingConfig]]]:  # fmt: skip
    """A finished search, and what it asked for."""
    given.setdefault("goal", Goal())
    found = Search(space_of(packages or (package(config=config(8)),), space, serving or Serving(), CORES), **given)
    asked: list[tuple[Package, ServingConfig]] = []
    while (point := found.ask()) is not None:
        asked.append((point.package, point.config))
        found.tell(point, measure(point.package, point.config))
    return found, asked


def made_of(throughput: Callable[[ServingConfig], float], limit: float | None = None) -> Measure:
    """A machine whose p99 grows with the batch."""

    def measure(one: Package, at: ServingConfig) -> Trial:
        p99 = at.max_batch + at.queue_delay_us / 100
        return trial(
            precision=one.precision, config=at, throughput_per_s=throughput(at), p99_ms=p99,
            within_slo=limit is None or p99 <= limit,
        )  # fmt: skip

    return measure


def grows(at: ServingConfig) -> float:
    return (
        100
        * math.sqrt(at.max_batch)
        * at.instances
        * (1.2 if at.threads == 2 else 1)
        * (1.1 if at.queue_delay_us else 1)
    )


def test_the_best_configuration_of_a_smooth_machine_is_found() -> None:
    found, asked = search(made_of(grows))
    assert found.best()[1].config == config(32, 500, 2, 2)
    assert len(asked) < 24  # fewer than there are


@pytest.mark.parametrize("seed", range(5))
def test_a_tenth_of_a_large_space_is_enough_to_come_within_a_twentieth_of_the_best(seed: int) -> None:
    rng = np.random.default_rng(seed)
    space = SearchSpace(
        max_batch=(1, 2, 4, 8, 16, 32, 64), queue_delay_us=(0, 100, 500, 1000), instances=(1, 2, 3, 4),
        threads=(1, 2, 4),
    )  # fmt: skip
    best_batch, crowd, delay = rng.uniform(2, 5), rng.uniform(0.3, 0.7), rng.uniform(-0.1, 0.1)
    speed = {"fp32": 1.0, "int8": rng.uniform(0.8, 1.6)}

    def rate(one: Package, at: ServingConfig) -> float:
        used = min(at.instances * at.threads, 4) * crowd ** max(0.0, math.log2(at.instances * at.threads / 4))
        batch = 1 / (1 + ((math.log2(at.max_batch) - best_batch) / 3) ** 2)
        return float(1000 * speed[one.precision] * used**0.8 * batch * (1 + delay * (at.queue_delay_us > 0)))

    def measure(one: Package, at: ServingConfig) -> Trial:
        noisy = rate(one, at) * float(np.exp(rng.normal(0, 0.02)))
        return trial(precision=one.precision, config=at, throughput_per_s=noisy)

    packages = (package(config=config(8)), package(precision="int8", config=config(8)))
    every = list(space_of(packages, space, Serving(), CORES).points())
    found, asked = search(measure, space, None, *packages)
    chosen = found.best()
    assert len(asked) + FINALISTS <= len(every) // 10  # each final may need its like without a delay
    assert rate(chosen[0], chosen[1].config) >= 0.95 * max(rate(one.package, one.config) for one in every)


def test_the_best_within_the_latency_limit_is_found() -> None:
    found, _ = search(made_of(grows, limit=10), goal=Goal(p99_ms=10))
    assert found.best()[1].config == config(8, 0, 2, 2)


def test_where_nothing_is_within_the_limit_the_lowest_latency_is_taken() -> None:
    found, _ = search(made_of(grows, limit=0.5), goal=Goal(p99_ms=0.5))
    best = found.best()[1]
    assert (best.config.max_batch, best.config.queue_delay_us, best.within_slo) == (1, 0, False)


def told(*trials: Trial, goal: Goal | None = None, final: bool = False) -> Search:
    """A search that was told trials of configurations of its space, in order."""
    found = Search(space_of((package(),), SPACE, Serving(), CORES), goal or Goal())
    for point, one in zip(found.space.points(), trials, strict=False):
        (found.tell_final if final else found.tell)(point, one.model_copy(update={"config": point.config}))
    return found


def test_within_the_limit_beats_any_throughput_outside_it() -> None:
    found = told(trial(throughput_per_s=9000, within_slo=False), trial(throughput_per_s=10), goal=Goal(p99_ms=1))
    assert found.best()[1].throughput_per_s == 10


def test_a_cheaper_million_beats_a_faster_machine() -> None:
    goal = Goal(price_per_hour=1.0, cores=4)
    small, large = trial(throughput_per_s=400, config=config(8)), trial(throughput_per_s=1000, config=config(8, 0, 4))
    assert goal.per_million(small) == pytest.approx(1 / 4 / 3600 / 400 * 1e6)
    assert goal.worth(small) > goal.worth(large)
    assert Goal().worth(small) < Goal().worth(large)


def test_memory_is_a_budget_like_latency() -> None:
    assert not Goal(memory_mb=100).keeps(5, 101)
    assert Goal(memory_mb=100, p99_ms=5).keeps(5, 100)
    assert not Goal(p99_ms=5).keeps(math.nan, 1)


def test_nothing_is_measured_twice() -> None:
    space = SearchSpace(max_batch=(8, 8, 1), instances=(1, 1, 2), threads=(1,), queue_delay_us=(0,))
    for at in (SPACE, space):
        _, asked = search(made_of(grows), at)
        seen = [(one.precision, given) for one, given in asked]
        assert len(seen) == len(set(seen))


def test_the_configuration_that_was_packaged_is_measured_first_for_every_precision() -> None:
    fp32, int8 = package(config=config(8)), package(precision="int8", config=config(8))
    _, asked = search(made_of(grows), SPACE, None, fp32, int8)
    assert asked[:2] == [(fp32, config(8)), (int8, config(8))]


def test_what_was_best_before_is_measured_next() -> None:
    before = [("fp32", config(32, 500, 1, 2)), ("int8", config(1)), ("fp32", config(7))]
    _, asked = search(made_of(grows), remembered=before)
    assert [at for _, at in asked[:2]] == [config(8), config(32, 500, 1, 2)]


def test_the_search_finds_the_faster_precision() -> None:
    fp32, int8 = package(config=config(8)), package(precision="int8", config=config(8))

    def measure(one: Package, at: ServingConfig) -> Trial:
        return trial(precision=one.precision, config=at, throughput_per_s=grows(at) * (2 if one is int8 else 1))

    found, asked = search(measure, SPACE, None, fp32, int8)
    assert found.best()[0] is int8
    assert found.best()[1].config == config(32, 500, 2, 2)
    assert len(asked) < 48


def test_what_is_better_by_noise_alone_is_not_better() -> None:
    rates = (1000.0, 1019.0)
    assert told(*(trial(throughput_per_s=rate) for rate in rates)).best()[1].throughput_per_s == 1000
    assert told(*(trial(throughput_per_s=rate) for rate in (*rates, 1021.0))).best()[1].throughput_per_s == 1021


def test_finalists_are_those_that_short_windows_cannot_tell_apart() -> None:
    found = told(*(trial(throughput_per_s=rate) for rate in (500.0, 1000.0, 950.0, 100.0)))
    assert [point.config for point in found.finalists()] == [t.config for t in (found.trials[1], found.trials[2])]


def test_a_long_measurement_outweighs_a_short_one() -> None:
    found = told(*(trial(throughput_per_s=rate) for rate in (1000.0, 990.0)))
    first, second = found.finalists()
    found.tell_final(first, trial(config=first.config, throughput_per_s=900))
    found.tell_final(second, trial(config=second.config, throughput_per_s=980))
    assert found.best()[1].throughput_per_s == 980
    assert len(found.trials) == 4


def test_the_better_half_of_the_finalists_goes_on_and_the_median_counts() -> None:
    found = told(*[trial(throughput_per_s=1000)] * 4)
    first = found.finalists()
    for point, rate in zip(first, (1400.0, 900.0, 1010.0, 800.0), strict=True):
        found.tell_final(point, trial(config=point.config, throughput_per_s=rate))
    lucky, better = first[0], first[2]
    for rates in ({lucky.key: 900.0, better.key: 1000.0}, {lucky.key: 910.0, better.key: 1005.0}):
        now = found.finalists()
        assert {point.key for point in now} == set(rates)
        for point in now:
            found.tell_final(point, trial(config=point.config, throughput_per_s=rates[point.key]))
    assert (found.best()[1].config, found.best()[1].throughput_per_s) == (better.config, 1005)


def test_the_finals_end_when_one_alone_is_left_or_none_was_in_them() -> None:
    found = told(trial(throughput_per_s=1000), trial(throughput_per_s=10))
    (only,) = found.finalists()
    found.tell_final(only, trial(config=only.config, error="died"))
    assert found.finalists() == []
    assert found.best()[1].throughput_per_s == 1000  # as short as it was measured
    assert told(trial(error="died")).finalists() == []


@pytest.mark.parametrize(("delayed", "chosen"), [(1040.0, 0), (1100.0, 500)])
def test_waiting_for_batches_has_to_be_worth_it(delayed: float, chosen: int) -> None:
    """At full load it may seem a little better; at any other load each request pays for it."""
    placements = len(space_of((package(),), SPACE, Serving(), CORES).placements)
    found = told(*[trial(throughput_per_s=700)] * placements, trial(throughput_per_s=1000))
    finalists = list(found.finalists())
    assert [point.config.queue_delay_us for point in finalists] == [500, 0]
    for point, rate in zip(finalists, (delayed, 1000.0), strict=True):
        found.tell_final(point, trial(config=point.config, throughput_per_s=rate))
    assert found.best()[1].config.queue_delay_us == chosen


def test_what_is_slower_already_and_over_its_limit_is_hopeless() -> None:
    found = told(trial(throughput_per_s=1000), goal=Goal(p99_ms=10))
    assert found.hopeless(trial(throughput_per_s=900, within_slo=False))
    assert not found.hopeless(trial(throughput_per_s=1100, within_slo=False))
    assert not told().hopeless(trial(throughput_per_s=900, within_slo=False))


def test_the_same_answers_give_the_same_questions() -> None:
    assert search(made_of(grows))[1] == search(made_of(grows))[1]


def test_no_more_threads_are_proposed_than_twice_the_cores() -> None:
    space = SearchSpace(instances=(1, 2, 4, 8, 16), threads=(1, 2, 4, 8, 16))
    _, asked = search(made_of(lambda at: at.instances * at.threads), space)
    assert max(at.instances * at.threads for _, at in asked) == 8


def test_a_policed_queue_is_never_proposed_fewer_instances_than_it_needs() -> None:
    policed = Serving(queue=Queue(max_size=10))
    _, asked = search(
        made_of(lambda at: 100 / at.instances),
        SearchSpace(instances=(1, 2, 4)),
        policed,
        package(config=config(8, 0, 2)),
    )
    assert {at.instances for _, at in asked} == {2, 4}


def test_configurations_that_fail_are_kept_and_never_chosen() -> None:
    def measure(_: Package, at: ServingConfig) -> Trial:
        if at.max_batch == 32:
            return trial(config=at, throughput_per_s=0, error="does not load")
        return trial(config=at, throughput_per_s=grows(at))

    found, asked = search(measure)
    assert len(found.trials) == len(asked)
    assert {one.config.max_batch for one in found.trials if one.error} == {32}
    assert found.best()[1].config == config(8, 500, 2, 2)


def test_a_search_in_which_everything_fails_ends_and_says_the_last_reason() -> None:
    found, asked = search(lambda _, at: trial(config=at, error="perf_analyzer died"))
    assert len(asked) <= PATIENCE + 4
    with pytest.raises(MeasurementFailed, match="no serving configuration could be measured: perf_analyzer died"):
        found.best()


def test_a_record_names_the_best_of_very_many_trials_in_the_order_they_were_made() -> None:
    space = SearchSpace(max_batch=tuple(range(1, 33)), queue_delay_us=(0, 500), instances=(1, 2), threads=(1,))
    found = Search(space_of((package(),), space, Serving(), CORES), Goal())
    for point in found.space.points():
        found.tell(point, trial(config=point.config, throughput_per_s=grows(point.config)))
    kept = found.best_trials(64)
    assert (len(found.trials), len(kept)) == (128, 64)
    assert list(kept) == [one for one in found.trials if one in kept]
    worst = min(one.throughput_per_s for one in kept)
    assert all(one in kept for one in found.trials if one.throughput_per_s > worst)
    assert [one.error for one in told(trial(error="died"), trial()).best_trials(1)] == [""]


def test_a_trial_is_found_again_by_its_package_and_its_configuration() -> None:
    one, other = package(), package(repository=artifact("9", kind="tree"))
    keys = {_trial_key(a, at) for a in (one, other) for at in (config(1), config(8), config(8, 500), config(8, 0, 2))}
    assert len(keys) == 8
    assert short(config(8, 500, 2, 1)) == "batch 8, delay 500 us, 2 x 1 thread"


@pytest.mark.parametrize(
    "change",
    [
        {"packages": Packages(target="t", packages=(package(repository=artifact("9")),), checks=())},
        {"load": Load(protocol="http")},
        {"load": Load(seed=1)},
        {"space": SearchSpace(window_ms=500)},
        {"space": SearchSpace(max_concurrency=8)},
        {"space": SearchSpace(memory_mb=100)},
        {"latency_target": LatencyTarget(p99_ms=5)},
        {"hardware": [["avx2"], 8]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_trials_measured_otherwise_are_not_taken_over(change: dict[str, Any]) -> None:
    """What a trial says depends on all of these: at which concurrency it was taken, and whether it was in time."""
    given: dict[str, Any] = {
        "packages": Packages(target="t", packages=(package(),), checks=()), "load": Load(), "space": SearchSpace(),
        "latency_target": LatencyTarget(), "hardware": [["avx2"], 4],
    }  # fmt: skip
    assert _digest(**given) == _digest(**given)
    assert _digest(**given) != _digest(**given | change)


def test_a_longer_search_takes_over_the_trials_of_a_shorter_one() -> None:
    packages = Packages(target="t", packages=(package(),), checks=())
    digests = {
        _digest(packages, Load(), SearchSpace(time_budget_s=budget, threads=threads), LatencyTarget(), [])
        for budget in (5, 50)
        for threads in ((1,), (1, 2))
    }
    assert len(digests) == 1
