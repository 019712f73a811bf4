import pytest

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.spec.document import parse


def rule(text: str) -> str:
    return f"policy: {{rules: [{{{text}}}]}}"


@pytest.mark.parametrize(
    ("metric", "written", "limit"),
    [
        ("p99_ms", "40", 40),
        ("p99_ms", '"40 ms"', 40),
        ("p99_ms", "0.04 s", 40),
        ("p99_ms", "250us", 0.25),
        ("memory_mb", "2 GiB", 2048),
        ("memory_mb", "1048576 B", 1),
        ("p99_worse_percent", "5 %", 5),
        ("ttft_p99_ms", "0.5 s", 500),
        ("score_worse", '"0.01"', 0.01),
    ],
)
def test_a_limit_is_in_its_metric_s_unit_whatever_it_was_written_in(metric: str, written: str, limit: float) -> None:
    spec = parse(rule(f"metric: {metric}, comparison: '<=', limit: {written}"))
    assert spec.policy.rules[0].limit == pytest.approx(limit)


def test_a_rate_may_be_by_the_minute() -> None:
    for limit in (
        "metric: throughput_per_s, comparison: '>=', limit: 6000 requests/min",
        "metric: tokens_per_s, comparison: '>=', limit: 6000 tokens/min",
    ):
        assert parse(rule(limit)).policy.rules[0].limit == pytest.approx(100)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("metric: p99_ms, comparison: '<=', limit: 40 MiB", "p99_ms is a time, '40 MiB' is not"),
        ("metric: memory_mb, comparison: '<=', limit: 5 ms", "memory_mb is a size"),
        ("metric: score, comparison: '>=', limit: 95 %", "score is a plain number"),
        ("metric: p99_ms, comparison: '<=', limit: fast", "not a number with a unit"),
        ("metric: p99_ms, comparison: '<=', limit: .nan", "finite"),
        ("metric: p99_ms, comparison: '>=', limit: 40", "a smaller p99_ms is better: write `<=`"),
        ("metric: throughput_per_s, comparison: '<=', limit: 40", "a larger throughput_per_s is better"),
        ("metric: tokens_per_s, comparison: '>=', limit: 5 requests/s", "tokens_per_s is a rate of tokens"),
        ("metric: p98_ms, comparison: '<=', limit: 40", "did you mean 'p9"),
        ("metric: memory_mb, comparison: '<=', limit: 40, slice: concurrency=4", "memory_mb has no slices"),
        ("metric: p99_ms, comparison: '<=', limit: 40, slice: busy", "write `concurrency=16` or `rate=200`"),
        ("metric: p99_ms, comparison: '=', limit: 40", "comparison"),
        ("metric: p99_ms, comparison: '<=', limit: 40, severity: fatal", "severity"),
        ("metric: p99_ms, comparison: '<='", "limit"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(SpecInvalid) as error:
        parse(rule(text))
    assert message in error.value.what
    assert error.value.what.startswith("policy.rules.0")
