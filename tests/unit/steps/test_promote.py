"""Which promotions are permitted, before anything changes."""

from pathlib import Path

import pytest

from shiplift.runtime.base.errors import Inconclusive, PromotionConflict, Refused
from shiplift.runtime.records.promotion import Champion
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.records.verdict import GateEvidence, Outcome, Scored, Verdict
from shiplift.runtime.serving.capturing import with_capture
from shiplift.runtime.spec.capturing import Capture
from shiplift.runtime.spec.groups import Delivery
from shiplift.steps.promote import _check_order, _others, promote
from tests.unit.examples import champion, check, deployment, load_report, model_version, site

NEW = Request(model="digits", version=5)


def conflict(before: int, compared: Champion, trigger: Trigger | None = None) -> str:
    try:
        _check_order(before, NEW, trigger or Trigger(), compared)
    except PromotionConflict as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("before", "compared"),
    [(0, Champion()), (3, Champion(version=3)), (5, Champion()), (5, Champion(version=3)), (0, Champion(version=3))],
)
def test_a_version_compared_with_who_is_still_champion_may_be_promoted(before: int, compared: Champion) -> None:
    assert conflict(before, compared) == ""


@pytest.mark.parametrize(("before", "compared"), [(4, Champion(version=3)), (4, Champion())])
def test_a_champion_that_came_in_between_is_a_conflict(before: int, compared: Champion) -> None:
    message = conflict(before, compared)
    assert message.startswith("version 4 became the champion while version 5 was compared with")
    assert "shiplift rerun digits/5" in message


def test_an_older_version_does_not_replace_a_newer_champion() -> None:
    message = conflict(7, Champion(version=7))
    assert message.startswith("version 7 is the champion and newer than version 5")
    assert "--allow-older" in message


def test_an_older_version_replaces_a_newer_champion_where_a_person_says_so() -> None:
    allowed = Trigger(kind="manual", allow_older=True)
    assert conflict(7, Champion(version=7), allowed) == ""
    assert conflict(8, Champion(version=7), allowed).startswith("version 8 became the champion")


def test_the_targets_that_passed_serve_with_what_their_load_tests_measured() -> None:
    others = tuple(deployment(target=target) for target in ("slow", "failed"))
    deployed = deployment().model_copy(update={"others": others})
    reports = tuple(
        load_report(max_rate_per_s=rate, limit_ms=50, target=name) for name, rate in (("slow", 100), ("failed", 10))
    )
    evidence = GateEvidence(
        parity=(), challenger=Scored(version=5, target="fast"), load_report=load_report(others=reports)
    )
    verdict = Verdict.of((check(),)).model_copy(update={"evidence": evidence, "left_out": ("failed",)})
    capture = Capture(share=0.1)
    (beside,) = _others(deployed, verdict, Delivery(capture=capture))
    assert beside.package.capturing == with_capture(beside.package, capture).capturing is not None
    assert beside.package.target == "slow"
    assert beside.capacity is not None
    assert (beside.capacity.within_slo_per_s, beside.capacity.p99_ms) == (100, 50)


@pytest.mark.parametrize(("outcome", "error"), [(Outcome.FAIL, Refused), (Outcome.INCONCLUSIVE, Inconclusive)])
def test_what_did_not_pass_is_never_promoted(tmp_path: Path, outcome: Outcome, error: type[Exception]) -> None:
    verdict = Verdict.of((check(outcome, reason="no"),))
    with pytest.raises(error):
        promote(
            site(tmp_path),
            NEW,
            Trigger(),
            model_version(),
            verdict,
            deployment(),
            champion(),
            Delivery(),
        )
    assert list(tmp_path.iterdir()) == []
