"""A version that passed every gate waits for a person, on a real stack; nothing is held meanwhile."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from shiplift.pipelines.daemons import dispatcher
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
from shiplift.runtime.store.registry.terms import APPROVE_TAG, CHAMPION, REJECT_TAG, TAG
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


def test_a_version_goes_on_as_tags_and_aliases_say_that_were_set_while_it_waited(lab: Lab) -> None:
    model, client = "approved-by-tag", lab.mlflow.MlflowClient()
    (lab.home / FILE).write_text("policy: {approvals: {tags: trusted, alias: reviewed}}\n")

    def after_a_look(version: int, outcome: str) -> str:
        dispatcher.sweep(lab.site, lab.releases, since=time.time() + 3600)
        assert lab.wait(model, version).outcome == outcome
        info = lab.registry.version(model, version)
        assert not {APPROVE_TAG, REJECT_TAG} & set(info.tags)
        assert "reviewed" not in info.aliases
        return info.tags[f"{TAG}approval"]

    try:
        with lab.unannounced():
            first = lab.log_classifier(model, spec=SPEC)
        client.set_model_version_tag(model, str(first), APPROVE_TAG, "set before anything waits")
        client.set_registered_model_alias(model, "reviewed", str(first))
        assert lab.order(model, first).exit_code == AwaitingApproval.exit_code
        assert after_a_look(first, "waiting for approval").startswith("waiting until")

        client.set_model_version_tag(model, str(first), APPROVE_TAG, "labels checked")
        client.set_model_version_tag(model, str(first), REJECT_TAG, "too slow")
        assert after_a_look(first, "rejected") == "rejected by a tag in the registry: too slow"
        assert production(lab.site).serving(model) == 0

        assert lab.order(model, first, again=True).exit_code == AwaitingApproval.exit_code
        client.set_registered_model_alias(model, "reviewed", str(first))
        assert after_a_look(first, "promoted") == "approved by an alias in the registry: reviewed"
        assert production(lab.site).serving(model) == lab.registry.alias(model, CHAMPION) == first

        with lab.unannounced():
            second = lab.log_classifier(model, samples=1000, spec=SPEC)
        assert lab.order(model, second).exit_code == AwaitingApproval.exit_code
        client.set_model_version_tag(model, str(second), APPROVE_TAG, "labels checked")
        assert after_a_look(second, "promoted") == "approved by a tag in the registry: labels checked"
        assert production(lab.site).serving(model) == second
    finally:
        (lab.home / FILE).unlink()
