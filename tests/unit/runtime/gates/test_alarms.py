"""What raises an alarm of a bake, what is chance, and what is not known."""

import math
from dataclasses import dataclass
from typing import get_args

import numpy as np
import pytest

from shiplift.runtime.gates.alarms import JUDGES, LASTS, LOOK_S, QUIET, judge, lower_bound
from shiplift.runtime.gates.statistics import shared
from shiplift.runtime.records.baking import Alarm, BakeReading
from shiplift.runtime.spec.baking import AlarmSpec

SURE = shared(0.95, 1800)
FAST = {0.5: 1.0, 0.9: 2.0, 0.95: 3.0, 0.99: 5.0, 0.999: 8.0}
P99 = Alarm(kind="p99", limit=10)
ERRORS = Alarm(kind="errors", limit=1)
QUERY = Alarm(kind="query", query="up", limit=1, below=True)


@dataclass
class Server:
    """A server whose counters are read every two seconds."""

    answered: int = 0
    failed: int = 0
    at_s: float = 0.0

    def then(self, answered: int = 0, failed: int = 0, **fields: object) -> BakeReading:
        self.at_s += LOOK_S
        self.answered += answered
        self.failed += failed
        return BakeReading(at_s=self.at_s, answered=self.answered, failed=self.failed, **fields)


def test_every_alarm_of_the_spec_has_a_judge() -> None:
    kinds = {get_args(each)[0].model_fields["kind"].default for each in get_args(get_args(AlarmSpec)[0])}
    assert kinds == set(JUDGES)


def test_many_failures_raise_an_alarm_at_once_and_a_few_do_not() -> None:
    server = Server()
    readings = [server.then(answered=100) for _ in range(5)]
    assert judge(ERRORS, [*readings, Server(500, 0, server.at_s).then(answered=98, failed=2)], SURE) == QUIET
    found = judge(ERRORS, [*readings, server.then(answered=50, failed=50)], SURE)
    assert found.raised == "50 of the last 500 requests failed, 10 %; the limit is 1 %"


def test_a_small_excess_is_found_over_the_whole_bake() -> None:
    server = Server()
    readings = [server.then(answered=98, failed=2) for _ in range(20)]
    assert judge(ERRORS, readings, SURE) == QUIET
    readings += [server.then(answered=98, failed=2) for _ in range(100)]
    assert "of all 11900 requests failed, 2 %" in judge(ERRORS, readings, SURE).raised


def test_failures_from_before_the_bake_and_before_a_restart_do_not_count() -> None:
    server = Server(answered=100, failed=100)
    before = server.then()
    again = Server(at_s=server.at_s)
    assert judge(ERRORS, [before, again.then(answered=100), again.then(answered=100)], SURE) == QUIET


def test_at_the_limit_a_whole_bake_raises_seldom_more_than_chance_allows() -> None:
    """Twenty bakes of an hour whose true share of failures is the limit; 0.05 of them may raise an alarm."""
    raised, random = 0, np.random.default_rng(7)
    for _ in range(20):
        server, readings = Server(), [BakeReading(at_s=0, answered=0, failed=0)]
        failures = map(int, random.binomial(20, 0.01, size=300))
        readings += [server.then(answered=20 - failed, failed=failed) for failed in failures]
        raised += any(judge(ERRORS, readings[:looks], SURE).raised for looks in range(10, 300, 10))
    assert raised <= 2


def test_a_tenth_of_the_requests_too_slow_is_an_alarm_and_one_slow_request_is_not() -> None:
    server = Server()
    readings = [server.then(answered=50, latency_ms=FAST) for _ in range(10)]
    once = server.then(answered=50, latency_ms=FAST | {0.99: 40.0, 0.999: 60.0})
    assert judge(P99, [*readings, once], SURE) == QUIET
    slow = server.then(answered=50, latency_ms=FAST | {0.9: 11.0, 0.95: 20.0, 0.99: 40.0, 0.999: 60.0})
    assert judge(P99, [*readings, once, slow], SURE).raised == ("at least 10 % of 550 requests took longer than 10 ms")


def test_few_slow_requests_are_chance() -> None:
    server = Server()
    slow = {0.5: 1.0, 0.9: 11.0, 0.99: 12.0}
    assert judge(P99, [server.then(), server.then(answered=10, latency_ms=slow)], SURE) == QUIET


def test_a_p99_over_its_limit_in_nearly_all_minutes_is_an_alarm() -> None:
    server = Server()
    over = FAST | {0.99: 12.0, 0.999: 20.0}
    readings = [server.then(answered=50, latency_ms=over) for _ in range(8 * 30)]
    assert judge(P99, readings, SURE) == QUIET
    readings += [server.then(answered=50, latency_ms=over) for _ in range(10 * 30)]
    assert "the 99th percentile was over 10 ms in 18 of 18 minutes" in judge(P99, readings, SURE).raised


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_a_query_without_a_number_is_unknown_never_quiet(value: float | None) -> None:
    found = judge(QUERY, [BakeReading(at_s=0, values={"up": value})], SURE)
    assert (found.raised, found.unknown) == ("", "the query 'up' gives no number")


def test_a_query_is_an_alarm_once_its_breach_lasts() -> None:
    bad = [BakeReading(at_s=LOOK_S * number, values={"up": 0.0}) for number in range(LASTS)]
    assert judge(QUERY, bad[:-1], SURE) == QUIET
    assert judge(QUERY, bad, SURE).raised == "the query 'up' gave 0, below its limit 1"


@pytest.mark.parametrize("alarm", [ERRORS, P99, Alarm(kind="answers"), Alarm(kind="of the future")])
def test_what_can_not_be_read_is_unknown(alarm: Alarm) -> None:
    assert judge(alarm, [BakeReading(at_s=0)], SURE).unknown


def test_the_bound_of_a_share_is_exact() -> None:
    # One-sided 97.5 %: 10 in 100 gives Clopper and Pearson's two-sided 95 % interval from 0.0490 on.
    assert lower_bound(10, 100, 0.975) == pytest.approx(0.0490, abs=1e-4)
    assert (lower_bound(0, 100, 0.95), lower_bound(0, 0, 0.95)) == (0.0, 0.0)
