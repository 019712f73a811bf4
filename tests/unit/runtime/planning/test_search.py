from dataclasses import replace
from itertools import product

import pytest

from shiplift.runtime.base.errors import NoPlan
from shiplift.runtime.planning.options import Grid, Problem, options_of
from shiplift.runtime.planning.profiles import StepProfile
from shiplift.runtime.planning.search import SettingsSearch
from tests.unit.runtime.planning.graphs import configuration, problem

FAST = configuration(threads=2, batch_ms={1: 6.0, 8: 20.0}, memory_mb=120.0)
SMALL = Grid(max_batch=(1, 8), spare=1)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer requests than a real search simulates: the same search, in a quarter of the time."""
    monkeypatch.setattr("shiplift.runtime.planning.search.REQUESTS", 1250)


@pytest.mark.slow
def test_options_keep_up_and_are_the_cheapest_first() -> None:
    asked = problem("chain", configuration(), FAST, rate=150, grid=Grid(max_batch=(1, 4, 8), queue_delay_us=(0, 1000)))
    search = SettingsSearch(asked)
    options = options_of(asked, "a", search.scenario)
    assert [option.cost for option in options] == sorted(option.cost for option in options)
    assert all(option.rows_per_s >= 150 for option in options)
    assert {option.max_batch for option in options} == {1, 4, 8}
    assert {option.queue_delay_us for option in options if option.max_batch == 1} == {0}
    fewest = min(option.instances for option in options if option.max_batch == 1 and option.configuration.threads == 1)
    assert fewest == 2


def test_instances_are_planned_with_the_times_measured_for_as_many() -> None:
    crowded = configuration(instances=2, batch_ms={1: 16.0, 8: 60.0})
    asked = problem("one", configuration(), crowded, rate=90)
    by_count = {
        option.instances: option.configuration for option in options_of(asked, "a", SettingsSearch(asked).scenario)
    }
    assert {count: each.instances for count, each in by_count.items()} == {
        count: 2 if count > 1 else 1 for count in by_count
    }


def test_batches_are_large_enough_for_the_requests_rows() -> None:
    asked = problem_with(problem("chain", rate=10), {"second": StepProfile(rows={1: 1, 6: 1})})
    assert {option.max_batch for option in options_of(asked, "b", SettingsSearch(asked).scenario)} == {8}
    with pytest.raises(NoPlan, match="in requests of up to 9"):
        SettingsSearch(problem_with(asked, {"second": StepProfile(rows={9: 1})}))


def problem_with(asked: Problem, steps: dict[str, StepProfile]) -> Problem:
    return replace(asked, profiles=asked.profiles.model_copy(update={"steps": steps}))


@pytest.mark.parametrize(
    ("name", "p99_ms"), [("chain", 80), ("join", 70), ("shared", 120), ("cascade", 60), ("loop", 150)]
)
def test_the_search_finds_what_trying_everything_finds(name: str, p99_ms: float) -> None:
    search = SettingsSearch(problem(name, configuration(), FAST, rate=60, p99_ms=p99_ms, grid=SMALL))
    found = search.cheapest()
    assert search.holds(found)
    assert search.simulations < 150
    everything = sorted(product(*map(range, map(len, search.options))), key=search.cost)
    best = next(choice for choice in everything if search.holds(choice))
    assert search.cost(found)[0] <= 1.05 * search.cost(best)[0]


@pytest.mark.slow
def test_a_tighter_limit_or_a_higher_rate_never_costs_less() -> None:
    def cores(rate: float, p99_ms: float) -> float:
        search = SettingsSearch(problem("chain", configuration(), FAST, rate=rate, p99_ms=p99_ms, grid=SMALL))
        return search.cost(search.cheapest())[0]

    assert cores(40, 200) <= cores(40, 60) <= cores(40, 45)
    assert cores(40, 100) <= cores(120, 100) <= cores(300, 100)


@pytest.mark.slow
def test_an_impossible_limit_says_what_comes_nearest_and_why() -> None:
    with pytest.raises(
        NoPlan, match="no settings hold a p99 of 15 ms at 40/s with CV 1: the best p99 found is"
    ) as error:
        SettingsSearch(problem("chain", p99_ms=15)).cheapest()
    assert "takes longest" in error.value.what
    nearest = float(error.value.what.partition("found is ")[2].partition(" ms")[0])
    search = SettingsSearch(problem("chain", p99_ms=1.2 * nearest))
    assert search.holds(search.cheapest())


def test_too_high_a_rate_says_what_the_member_completes() -> None:
    with pytest.raises(NoPlan, match=r"completes at most 421\.1 rows/s"):
        SettingsSearch(problem("one", configuration(most_instances=2), rate=900))
