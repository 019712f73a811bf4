import math
import os
from collections.abc import Callable
from typing import Any

import pytest

from runtime.errors import MeasurementFailed
from runtime.records import Package, Packages, ServingConfig, Trial
from runtime.spec import LatencyTarget, Load, Queue, SearchSpace, Serving
from steps.tune import _digest, _Search, _short, _trial_key

from .examples import artifact, config, package, trial

SPACE = SearchSpace(max_batch=(1, 8, 32), queue_delay_us=(0, 500), instances=(1, 2), threads=(1, 2))
Measure = Callable[[Package, ServingConfig], Trial]


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3})


def search(
    measure: Measure, space: SearchSpace = SPACE, serving: Serving | None = None, *packages: Package
) -> tuple[_Search, list[tuple[Package, ServingConfig]]]:
    """A finished search, and what it proposed."""
    found = _Search(packages or (package(config=config(8)),), space, serving or Serving())
    proposed = []
    for one, at in found.proposals():
        proposed.append((one, at))
        found.note(one, measure(one, at))
    return found, proposed


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
    found, proposed = search(made_of(grows))
    assert found.best()[1].config == config(32, 500, 2, 2)
    assert found.exhausted
    assert len(proposed) < 24  # fewer than there are


def test_the_best_within_the_latency_limit_is_found() -> None:
    found, _ = search(made_of(grows, limit=10))
    assert found.best()[1].config == config(8, 0, 2, 2)


def test_where_nothing_is_within_the_limit_the_lowest_latency_is_taken() -> None:
    found, _ = search(made_of(grows, limit=0.5))
    best = found.best()[1]
    assert (best.config.max_batch, best.config.queue_delay_us, best.within_slo) == (1, 0, False)


def test_within_the_limit_beats_any_throughput_outside_it() -> None:
    found = _Search((package(),), SPACE, Serving())
    found.note(package(), trial(throughput_per_s=9000, within_slo=False))
    found.note(package(), trial(throughput_per_s=10, within_slo=True))
    assert found.best()[1].throughput_per_s == 10


def test_nothing_is_measured_twice() -> None:
    space = SearchSpace(max_batch=(8, 8, 1), instances=(1, 1, 2), threads=(1,), queue_delay_us=(0,))
    for at in (SPACE, space):
        _, proposed = search(made_of(grows), at)
        seen = [(one.precision, given) for one, given in proposed]
        assert len(seen) == len(set(seen))


def test_the_configuration_that_was_packaged_is_measured_first_for_every_precision() -> None:
    fp32, int8 = package(config=config(8)), package(precision="int8", config=config(8))
    _, proposed = search(made_of(grows), SPACE, None, fp32, int8)
    assert proposed[:2] == [(fp32, config(8)), (int8, config(8))]


def test_the_search_goes_on_from_the_faster_precision() -> None:
    fp32, int8 = package(config=config(8)), package(precision="int8", config=config(8))

    def measure(one: Package, at: ServingConfig) -> Trial:
        return trial(precision=one.precision, config=at, throughput_per_s=grows(at) * (2 if one is int8 else 1))

    found, proposed = search(measure, SPACE, None, fp32, int8)
    assert found.best()[0] is int8
    assert [one.precision for one, _ in proposed].count("fp32") == 1


def test_what_is_better_by_noise_alone_is_not_better() -> None:
    first = trial(throughput_per_s=1000)
    found = _Search((package(),), SPACE, Serving())
    found.note(package(), first)
    found.note(package(), trial(throughput_per_s=1019))
    assert found.best()[1] is first
    found.note(package(), trial(throughput_per_s=1021))
    assert found.best()[1].throughput_per_s == 1021


def test_no_more_threads_are_proposed_than_twice_the_cores() -> None:
    space = SearchSpace(instances=(1, 2, 4, 8, 16), threads=(1, 2, 4, 8, 16))
    _, proposed = search(made_of(lambda at: at.instances * at.threads), space)
    assert max(at.instances * at.threads for _, at in proposed) == 8


def test_a_policed_queue_is_never_proposed_fewer_instances_than_it_needs() -> None:
    policed = Serving(queue=Queue(max_size=10))
    _, proposed = search(
        made_of(lambda at: 100 / at.instances),
        SearchSpace(instances=(1, 2, 4)),
        policed,
        package(config=config(8, 0, 2)),
    )
    assert {at.instances for _, at in proposed} == {2, 4}


def test_configurations_that_fail_are_kept_and_never_chosen() -> None:
    def measure(_: Package, at: ServingConfig) -> Trial:
        if at.max_batch == 32:
            return trial(config=at, throughput_per_s=0, error="does not load")
        return trial(config=at, throughput_per_s=grows(at))

    found, proposed = search(measure)
    assert len(found.trials) == len(proposed)
    assert {one.config.max_batch for one in found.trials if one.error} == {32}
    assert found.best()[1].config == config(8, 500, 2, 2)


def test_a_search_in_which_everything_fails_says_the_last_reason() -> None:
    found, proposed = search(lambda _, at: trial(config=at, error="perf_analyzer died"))
    assert len(proposed) == 1
    with pytest.raises(MeasurementFailed, match="no serving configuration could be measured: perf_analyzer died"):
        found.best()


def test_a_trial_is_found_again_by_its_package_and_its_configuration() -> None:
    one, other = package(), package(repository=artifact("9", kind="tree"))
    keys = {_trial_key(a, at) for a in (one, other) for at in (config(1), config(8), config(8, 500), config(8, 0, 2))}
    assert len(keys) == 8
    assert _short(config(8, 500, 2, 1)) == "batch 8, delay 500 us, 2 x 1 thread"


@pytest.mark.parametrize(
    "change",
    [
        {"packages": Packages(target="t", packages=(package(repository=artifact("9")),), checks=())},
        {"load": Load(protocol="http")},
        {"load": Load(seed=1)},
        {"space": SearchSpace(window_ms=500)},
        {"space": SearchSpace(max_concurrency=8)},
        {"latency_target": LatencyTarget(p99_ms=5)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_trials_measured_otherwise_are_not_taken_over(change: dict[str, Any]) -> None:
    """What a trial says depends on all of these: at which concurrency it was taken, and whether it was in time."""
    given: dict[str, Any] = {
        "packages": Packages(target="t", packages=(package(),), checks=()), "load": Load(), "space": SearchSpace(),
        "latency_target": LatencyTarget(),
    }  # fmt: skip
    assert _digest(**given) == _digest(**given)
    assert _digest(**given) != _digest(**given | change)


def test_a_longer_search_takes_over_the_trials_of_a_shorter_one() -> None:
    packages = Packages(target="t", packages=(package(),), checks=())
    digests = {
        _digest(packages, Load(), SearchSpace(time_budget_s=budget, threads=threads), LatencyTarget())
        for budget in (5, 50)
        for threads in ((1,), (1, 2))
    }
    assert len(digests) == 1
