import pytest

from shiplift.runtime.records.measurement import Trial
from shiplift.runtime.search.goal import Goal
from shiplift.runtime.search.idle_cores import why_idle
from shiplift.runtime.search.space import space_of
from shiplift.runtime.spec.measurement import SearchSpace
from shiplift.runtime.spec.serving_settings import Serving
from tests.unit.examples import config, package, trial

HALF = trial(config=config(8, 0, 1, 1), throughput_per_s=900, cost_per_million=1.5)


def filled(**changes: object) -> Trial:
    return trial(**{"config": config(8, 0, 2, 1), "throughput_per_s": 800, "cost_per_million": 2.0} | changes)


@pytest.mark.parametrize(
    ("goal", "trials", "best", "reason"),
    [
        (Goal(), [HALF, filled()], filled(), ""),
        (Goal(), [], HALF.model_copy(update={"engine": "python"}), ""),
        (Goal(), [HALF, filled()], HALF, "answers 900 requests per second; with all it is 800"),
        (
            Goal(),
            [HALF, filled(disturbed_cores=0.8)],
            HALF,
            "with all it is 800, while other processes used 0.8 cores",
        ),
        (Goal(price_per_hour=1), [HALF, filled()], HALF, "costs 1.5 for a million requests; with all it is 2"),
        (Goal(p99_ms=4), [HALF, filled(within_slo=False)], HALF, "p99 is 5 ms or more, and `slo.p99_ms` is 4"),
        (
            Goal(memory_mb=99),
            [HALF, filled(within_slo=False)],
            HALF,
            "the server takes 100 MiB, and `search.memory_mb` is 99",
        ),
        (
            Goal(),
            [HALF, filled(error="out of memory")],
            HALF,
            "no configuration that uses all of them could be measured",
        ),
    ],
)
def test_idle_cores_have_a_reason(goal: Goal, trials: list[Trial], best: Trial, reason: str) -> None:
    told = why_idle(space_of((package(),), SearchSpace(), Serving(), 2), goal, trials, best)
    assert told.endswith(reason)
    assert bool(told) == bool(reason)
    assert not reason or told.startswith("the chosen configuration can use 1 of 2 cores")


def test_a_spec_that_allows_fewer_cores_is_named() -> None:
    space = space_of((package(),), SearchSpace(instances=(1,), threads=(1, 2)), Serving(), 8)
    assert "`search.instances` and `search.threads` allow no more than 2" in why_idle(space, Goal(), [], HALF)
