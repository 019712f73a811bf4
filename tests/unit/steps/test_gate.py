from typing import Any, Literal

import pytest

from shiplift.runtime.records.deployment import Deployment
from shiplift.runtime.records.measurement import LoadReport
from shiplift.runtime.records.promotion import Champion
from shiplift.runtime.records.shadowing import Shadowed
from shiplift.runtime.records.verdict import Outcome
from shiplift.runtime.spec.groups import Requirements
from shiplift.runtime.spec.measurement import Regression, Slo
from shiplift.runtime.spec.model import Data, Quality
from shiplift.runtime.spec.rules import Policy, Rule
from shiplift.runtime.spec.serving_settings import Rollout
from shiplift.runtime.spec.target import Fleet, Target
from shiplift.runtime.store.ledger import artifacts_of
from shiplift.steps.gate import gate
from tests.unit.examples import artifact, case, champion, comparison, deployment, exported, load_report, point

LIMITS = Slo(p99_ms=50, throughput_per_s=500, memory_mb=300, regression=Regression(p99_percent=20))
QUALITY, DATA = Quality(min_score=0.9), Data(min_samples=100)
MEASURED = load_report(point(), comparison=comparison())
FIRST = Champion()
RULES = Policy()
FLEET = Fleet()
NONE = Shadowed()  # no shadow was asked for
ALL = Requirements(quality=QUALITY, data=DATA, slo=LIMITS, policy=RULES)


def asked(**changes: Any) -> Requirements:
    return ALL.model_copy(update=changes)


def test_a_version_that_keeps_every_limit_passes_every_check() -> None:
    verdict = gate(ALL, exported(), deployment(), MEASURED, champion(), FLEET, NONE)
    assert verdict.outcome is Outcome.PASS
    assert [check.name for check in verdict.checks] == [
        "parity",
        "accuracy",
        "p99",
        "throughput",
        "failures",
        "memory",
        "accuracy against the champion",
        "p99 against the champion",
        "throughput against the champion",
    ]


def test_the_first_version_is_judged_by_the_limits_alone() -> None:
    verdict = gate(ALL, exported(), deployment(), load_report(), FIRST, FLEET, NONE)
    assert (verdict.outcome, len(verdict.checks)) == (Outcome.PASS, 6)


def test_the_default_spec_lets_a_sound_model_pass() -> None:
    assert (
        gate(
            Requirements(quality=Quality(), data=Data(), slo=Slo(), policy=Policy()),
            exported(),
            deployment(),
            load_report(),
            FIRST,
            FLEET,
            NONE,
        ).outcome
        is Outcome.PASS
    )


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"exported": exported(case(1, 1))}, "parity"),
        ({"deployment": deployment(score=0.85), "champion": champion(score=0.85)}, "accuracy"),
        ({"load_report": load_report(point(p99_ms=60), comparison=comparison())}, "p99"),
        ({"load_report": load_report(point(throughput_per_s=400), comparison=comparison())}, "throughput"),
        ({"load_report": load_report(failures=1, comparison=comparison())}, "failures"),
        ({"load_report": load_report(memory_mb=301.0, comparison=comparison())}, "memory"),
        ({"load_report": load_report(comparison=comparison(p99_ratio=2.0))}, "p99 against the champion"),
        ({"load_report": load_report(comparison=comparison(throughput_ratio=0.5))}, "throughput against the champion"),
        ({"champion": champion(score=0.99)}, "accuracy against the champion"),
    ],
)
def test_any_single_failure_refuses_the_version(change: dict[str, object], name: str) -> None:
    records: dict[str, object] = {
        "requirements": ALL,
        "exported": exported(),
        "deployment": deployment(),
        "load_report": MEASURED,
        "champion": champion(),
        "fleet": FLEET,
        "shadowed": NONE,
    }
    verdict = gate(**records | change)  # type: ignore[arg-type]
    assert verdict.outcome is Outcome.FAIL
    assert [check.name for check in verdict.checks if check.verdict is Outcome.FAIL] == [name]
    assert len(verdict.reasons) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"deployment": deployment(samples=5)},
        {"deployment": deployment(score=None, metric=None, samples=0)},
        {"load_report": load_report()},
        {"load_report": load_report(comparison=comparison(p99_ratio=1.3, spread=0.5))},
        {"load_report": load_report(point(p99_ms=49, stable=False, spread_percent=40), comparison=comparison())},
    ],
    ids=["few samples", "no data", "no comparison", "noise", "unstable"],
)
def test_what_is_not_known_is_never_a_pass(change: dict[str, object]) -> None:
    records: dict[str, object] = {
        "requirements": ALL,
        "exported": exported(),
        "deployment": deployment(),
        "load_report": MEASURED,
        "champion": champion(),
        "fleet": FLEET,
        "shadowed": NONE,
    }
    verdict = gate(**records | change)  # type: ignore[arg-type]
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.reasons


def test_a_failure_outweighs_what_is_not_known() -> None:
    verdict = gate(ALL, exported(case(1, 1)), deployment(samples=5), MEASURED, FIRST, FLEET, NONE)
    assert verdict.outcome is Outcome.FAIL


def test_targets_that_are_not_served_are_named_in_a_warning_that_decides_nothing() -> None:
    fleet = Fleet(targets=(Target(), Target(name="arm"), Target(name="spare")))
    verdict = gate(ALL, exported(), deployment(), MEASURED, champion(), fleet, NONE)
    warning = verdict.checks[-1]
    assert (verdict.outcome, verdict.reasons) == (Outcome.PASS, ())
    assert (warning.name, warning.severity, warning.verdict) == ("targets", "warn", Outcome.FAIL)
    assert (warning.measured, warning.limit) == (1, 3)
    assert warning.reason.startswith("target local-cpu is deployed and judged, arm, spare are not: one target serves")
    assert verdict.evidence is not None
    assert verdict.evidence.not_served == ("arm", "spare")


def two_targets(**other: Any) -> tuple[Deployment, LoadReport]:
    """A deployment of two targets and its load report; keywords change what was measured of the second."""
    beside = deployment(target="slow")
    report = load_report(point(**other), comparison=comparison()).model_copy(
        update={"comparison": None, "target": "slow"}
    )
    return (
        deployment().model_copy(update={"others": (beside,)}),
        MEASURED.model_copy(update={"target": "local-cpu", "others": (report,)}),
    )


def test_every_target_that_serves_is_checked_against_the_limits_and_the_first_against_the_champion() -> None:
    deployed, measured = two_targets()
    fleet = Fleet(targets=(Target(), Target(name="slow")))
    verdict = gate(ALL, exported(), deployed, measured, champion(), fleet, NONE)
    assert (verdict.outcome, verdict.left_out) == (Outcome.PASS, ())
    names = [check.name for check in verdict.checks]
    assert names[-5:] == ["accuracy on slow", "p99 on slow", "throughput on slow", "failures on slow", "memory on slow"]
    assert "targets" not in names


@pytest.mark.parametrize(
    ("policy", "outcome", "left_out"), [("refuse", Outcome.FAIL, ()), ("leave_out", Outcome.PASS, ("slow",))]
)
def test_a_target_that_fails_a_gate_refuses_the_version_unless_the_spec_says_to_leave_it_out(
    policy: Literal["refuse", "leave_out"], outcome: Outcome, left_out: tuple[str, ...]
) -> None:
    deployed, measured = two_targets(p99_ms=60)
    fleet, rollout = Fleet(targets=(Target(), Target(name="slow"))), Rollout(failed_target=policy)
    verdict = gate(asked(rollout=rollout), exported(), deployed, measured, champion(), fleet, NONE)
    assert (verdict.outcome, verdict.left_out) == (outcome, left_out)
    (failed,) = [check for check in verdict.checks if check.verdict is Outcome.FAIL]
    assert (failed.name, failed.severity) == ("p99 on slow", "block" if policy == "refuse" else "warn")
    assert failed.reason == "p99 60.00 ms at concurrency 4, the limit is 50"


def test_a_rule_for_a_target_counts_there_and_comparisons_are_the_first_s() -> None:
    deployed, measured = two_targets()
    rules = Policy(
        rules=(
            Rule(metric="failures", comparison="<=", limit=0, target="slow"),
            Rule(metric="p99_worse_percent", comparison="<=", limit=50),
        )
    )
    fleet = Fleet(targets=(Target(), Target(name="slow")))
    verdict = gate(asked(policy=rules), exported(), deployed, measured, champion(), fleet, NONE)
    assert verdict.outcome is Outcome.PASS
    names = [check.name for check in verdict.checks]
    assert (names.count("failures on slow"), names.count("p99_worse_percent")) == (2, 1)
    assert "p99_worse_percent on slow" not in names


def test_the_same_records_give_the_same_verdict() -> None:
    first, second = (gate(ALL, exported(), deployment(), MEASURED, champion(), FLEET, NONE) for _ in range(2))
    assert first == second


def test_the_verdict_carries_what_it_rests_on_and_no_bytes() -> None:
    measured = MEASURED.model_copy(update={"raw": artifact()})
    verdict = gate(ALL, exported(), deployment(), measured, champion(), FLEET, NONE)
    assert verdict.evidence is not None
    assert (verdict.evidence.challenger.version, verdict.evidence.champion and verdict.evidence.champion.version) == (
        2,
        1,
    )
    assert list(artifacts_of(verdict)) == []


def test_a_rule_stops_a_release_and_a_warning_does_not() -> None:
    for severity, outcome in (("block", Outcome.FAIL), ("warn", Outcome.PASS)):
        rules = Policy(rules=(Rule(metric="p95_ms", comparison="<=", limit=1, severity=severity),))
        verdict = gate(asked(policy=rules), exported(), deployment(), MEASURED, champion(), FLEET, NONE)
        assert verdict.outcome is outcome
        assert [check.name for check in verdict.checks if check.verdict is Outcome.FAIL] == ["p95_ms"]
        assert len(verdict.reasons) == (1 if outcome is Outcome.FAIL else 0)
