import random
from types import SimpleNamespace
from typing import cast

import pytest

from shiplift.runtime.serving.operator.evidence import Share, TrafficSample
from shiplift.runtime.serving.operator.observed import Observed
from shiplift.runtime.serving.operator.shares import SETTLE_S, Judgement, consistent, judge, requests_needed


@pytest.mark.parametrize("percent", [1, 2, 5, 10, 25, 50, 75, 90, 99])
def test_enough_requests_tell_a_share_from_none_and_all(percent: int) -> None:
    needed = requests_needed(percent)
    assert 40 <= needed <= 600
    assert not consistent(0, needed, percent)
    assert not consistent(needed, needed, percent)
    assert consistent(round(needed * percent / 100), needed, percent)


@pytest.mark.parametrize(("percent", "neighbour"), [(10, 50), (50, 10), (10, 30), (5, 25), (50, 90)])
def test_and_from_its_neighbours(percent: int, neighbour: int) -> None:
    needed = requests_needed(percent)
    assert not consistent(round(needed * neighbour / 100), needed, percent)


@pytest.mark.parametrize("percent", [1, 10, 50, 90])
@pytest.mark.parametrize("asked", [40, 240])
def test_the_interval_is_the_one_of_clopper_and_pearson(percent: int, asked: int) -> None:
    from scipy.stats import beta

    for answered in range(1, asked):
        low = beta.ppf(0.005, answered, asked - answered + 1)
        high = beta.ppf(0.995, answered + 1, asked - answered)
        assert consistent(answered, asked, percent) == (low <= percent / 100 <= high)


def test_a_true_share_is_rarely_doubted() -> None:
    generator, needed = random.Random(1), requests_needed(10)
    counts = [sum(generator.random() < 0.1 for _ in range(needed)) for _ in range(300)]
    assert sum(not consistent(count, needed, 10) for count in counts) <= 9


def test_all_means_all() -> None:
    assert consistent(60, 60, 100)
    assert not consistent(59, 60, 100)
    assert not consistent(0, 0, 100)
    assert consistent(0, 60, 0)


@pytest.mark.parametrize(
    ("sample", "waited_s", "judgement"),
    [
        (TrafficSample(asked=240, answered=24), 1, Judgement.HOLDS),
        (TrafficSample(asked=240, answered=120), 1, Judgement.UNKNOWN),  # the data plane still follows
        (TrafficSample(asked=240, answered=120), SETTLE_S + 1, Judgement.TOO_LATE),
        (TrafficSample(asked=1, answered=0, failure="UNAVAILABLE", unreachable=True), 1, Judgement.UNKNOWN),
        (TrafficSample(asked=1, answered=0, failure="UNAVAILABLE", unreachable=True), 61, Judgement.TOO_LATE),
        (TrafficSample(asked=9, answered=1, failure="INTERNAL: no such model"), 1, Judgement.FAILED),
    ],
)
def test_a_share_is_judged_by_what_the_front_answers(
    sample: TrafficSample, waited_s: float, judgement: Judgement
) -> None:
    share = Share(weights={"old": 90, "new": 10}, since=100, samples={"HTTP": sample})
    observed = cast("Observed", SimpleNamespace(now=100 + waited_s))
    assert judge(observed, share, "new") is judgement
    good = TrafficSample(asked=240, answered=24)
    both = Share(weights=share.weights, since=100, samples={"gRPC": good, "HTTP": sample})
    assert judge(observed, both, "new") is judgement  # one protocol does not make up for another
