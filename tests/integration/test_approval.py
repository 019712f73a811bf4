"""A version that passed every gate waits for a person, on a real stack; nothing is held meanwhile."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from shiplift.pipelines.engines.local.site_file import FILE
from shiplift.runtime.base.errors import (
    AlreadyDecided,
    AwaitingApproval,
    NothingToDecide,
    PolicyRefused,
    Rejected,
    ShipliftError,
)
from shiplift.runtime.serving.production import production
from shiplift.runtime.store.registry.terms import CHAMPION, TAG
from tests.integration.conftest import FAST, Lab, until

pytestmark = [pytest.mark.integration, pytest.mark.slow]
SPEC = FAST + "promotion: {approval: required}\n"


def decide(lab: Lab, version: int, *, approve: bool) -> str:
    """Decides about a version; what that came to."""
    try:
        name = lab.engine.decide("approved", version, approve=approve, reason="looked at it").name
    except ShipliftError as error:
        return type(error).__name__
    until(lambda: not lab.engine.under_way(name), seconds=120)
    return lab.engine.result(name).outcome


def test_a_version_is_promoted_once_a_person_approves(lab: Lab) -> None:
    model = "approved"
    first = lab.log_classifier(model, spec=SPEC)
    report = lab.wait(model, first)
    assert (report.exit_code, report.outcome) == (AwaitingApproval.exit_code, "waiting for approval")
    assert report.checks
    assert lab.registry.alias(model, CHAMPION) == production(lab.site).serving(model) == 0
    assert lab.registry.version(model, first).tags[f"{TAG}outcome"] == "waiting for approval"

    (lab.home / FILE).write_text("policy: {approvers: [nobody-here]}\n")
    with pytest.raises(PolicyRefused, match="only nobody-here"):
        lab.engine.decide(model, first, approve=True, reason="")
    (lab.home / FILE).unlink()

    with ThreadPoolExecutor(2) as people:
        outcomes = set(people.map(lambda approve: decide(lab, first, approve=approve), [True, False]))
    assert AlreadyDecided.__name__ in outcomes
    assert len(outcomes) == 2
    if "rejected" in outcomes:
        assert production(lab.site).serving(model) == 0
        assert lab.order(model, first, again=True).exit_code == AwaitingApproval.exit_code
        assert decide(lab, first, approve=True) == "promoted"
    assert production(lab.site).serving(model) == lab.registry.alias(model, CHAMPION) == first
    assert lab.registry.version(model, first).tags[f"{TAG}approval"].endswith(": looked at it")
    with pytest.raises(AlreadyDecided, match="already approved by"):
        lab.engine.decide(model, first, approve=False, reason="")

    second = lab.log_classifier(model, samples=1000, spec=SPEC)
    lab.wait(model, second)
    assert decide(lab, second, approve=False) == "rejected"
    assert lab.engine.report(model, second).exit_code == Rejected.exit_code
    assert production(lab.site).serving(model) == first
    with pytest.raises(NothingToDecide, match="was not released"):
        lab.engine.decide(model, 99, approve=True, reason="")
