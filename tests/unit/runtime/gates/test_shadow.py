"""The gates of a shadow: few requests, exact bounds, and what can't be known."""

import pytest

from shiplift.runtime.gates.shadow import shadow_checks, share_bounds
from shiplift.runtime.records.shadowing import Latency, OutputAgreement, Shadowed
from shiplift.runtime.records.verdict import Outcome, Verdict
from shiplift.runtime.spec.shadowing import Shadow

SLOW = Latency(p50_ms=2, p99_ms=12, low_ms=11, high_ms=13)
SEEN = Shadowed(
    champion=1,
    share=0.2,
    seconds=1800,
    requests=2000,
    challenger_latency=Latency(p50_ms=2, p99_ms=8, low_ms=7, high_ms=9),
    p99_ratios=(1.1, 1.2, 1.1, 1.2),
    outputs=(
        OutputAgreement(output="label", rows=4000, same=3800, requests=2000),
        OutputAgreement(output="label", slice="country=DE", rows=900, same=600, requests=400),
        OutputAgreement(output="label", slice="country=SM", rows=9, same=0, requests=9),
    ),
)


def wanted(**changes: object) -> Shadow:
    return Shadow.model_validate({"for": "30m"} | changes)


def outcome(shadowed: Shadowed, shadow: Shadow, p99_ms: float | None = 10) -> tuple[Outcome, tuple[str, ...]]:
    verdict = Verdict.of(tuple(shadow_checks(shadowed, shadow, p99_ms)))
    assert all(bool(check.do) == (check.verdict is not Outcome.PASS) for check in verdict.checks)
    return verdict.outcome, verdict.reasons


@pytest.mark.parametrize(
    ("changes", "spec", "expected", "reason"),
    [
        ({}, {"agreement_percent": 60, "p99_worse_percent": 30}, Outcome.PASS, ""),
        ({}, {"agreement_percent": 90}, Outcome.FAIL, "agreement of label in country=DE: 600 of 900 rows agree"),
        ({"failed": 60}, {}, Outcome.FAIL, "60 of 2000 requests failed"),
        ({"failed": 21}, {}, Outcome.INCONCLUSIVE, "shadow for longer"),  # 1.05 %, and chance gives that often
        ({"failed": 60, "champion_requests": 9000, "champion_failed": 270}, {}, Outcome.PASS, ""),
        ({"challenger_latency": SLOW}, {}, Outcome.FAIL, "p99 12.00 ms of 2000 real requests, the limit is 10"),
        ({"challenger_latency": SLOW}, {"p99_ms": 20}, Outcome.PASS, ""),
        ({"challenger_latency": None}, {}, Outcome.INCONCLUSIVE, "could not be measured"),
        ({}, {"p99_worse_percent": 5}, Outcome.FAIL, "% worse"),
        ({"p99_ratios": ()}, {"p99_worse_percent": 5}, Outcome.INCONCLUSIVE, "too few requests to compare"),
        ({}, {"agreement_percent": {"label": 99}}, Outcome.FAIL, "3800 of 4000 rows agree"),
        ({}, {"agreement_percent": {"score": 99}}, Outcome.INCONCLUSIVE, "no answer had an output 'score'"),
        ({"outputs": (), "uncompared": "dropped"}, {"agreement_percent": 9}, Outcome.INCONCLUSIVE, "dropped"),
        ({"outputs": (), "uncompared": "dropped"}, {}, Outcome.PASS, ""),
        ({"requests": 9}, {"if_fewer": "refuse"}, Outcome.INCONCLUSIVE, "9 requests were seen, too few"),
        ({"requests": 0}, {}, Outcome.PASS, ""),
        ({"champion": 0, "why_not": "no version serves"}, {}, Outcome.PASS, ""),
    ],
)
def test_a_shadow_is_judged(
    changes: dict[str, object], spec: dict[str, object], expected: Outcome, reason: str
) -> None:
    found, reasons = outcome(SEEN.model_copy(update=changes), wanted(**spec))
    assert (found, reason in "; ".join(reasons)) == (expected, True), reasons


def test_too_few_requests_are_told_of_without_ending_the_release() -> None:
    few = next(shadow_checks(SEEN.model_copy(update={"requests": 9}), wanted(), 10))
    assert (few.severity, few.verdict, few.measured) == ("warn", Outcome.INCONCLUSIVE, 9)


def test_bounds_are_exact() -> None:
    assert share_bounds(0, 100, 0.95) == pytest.approx((0, 0.0362), abs=1e-4)  # Clopper and Pearson's own tables
    assert share_bounds(10, 100, 0.95) == pytest.approx((0.0490, 0.1762), abs=1e-4)
    assert share_bounds(0, 0, 0.95) == (0, 1)
