"""A model is taken out of service on a real stack, while clients ask it, and stays out until a new release."""

import time

import pytest

from shiplift.pipelines.engines.local import stack
from shiplift.runtime.base.errors import NotFound, NothingToRollBack, StillInUse
from shiplift.runtime.host.processes import alive, stop
from shiplift.runtime.records.process import Process
from shiplift.runtime.records.request import Trigger
from shiplift.runtime.serving.production import production
from shiplift.runtime.store.registry.rest import RestRegistry
from shiplift.runtime.store.registry.terms import CHAMPION, TAG, request_of
from tests.integration.conftest import Lab, digits, until
from tests.integration.test_switch import traffic

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def triton(lab: Lab) -> Process:
    running = stack.read(lab.home)
    assert running
    return running.processes["triton"]


def test_a_retired_model_stays_out_of_service_until_a_new_release(lab: Lab) -> None:
    model = "retiring"
    first = lab.log_classifier(model)
    assert lab.wait(model, first).exit_code == 0
    with traffic(lab, model), pytest.raises(StillInUse, match=r"clients sent \d+ requests"):
        lab.engine.retire(model, 0, reason="replaced", force=False)
    assert production(lab.site).serving(model) == first

    retired = lab.engine.retire(model, 0, reason="replaced", force=True)
    assert (retired.served, retired.traffic.requests > 0) == (first, True)
    info = RestRegistry(lab.running.registry_uri).version(model, first)
    assert info
    assert (info.tags[f"{TAG}outcome"], info.tags[f"{TAG}retired"]) == ("retired", retired.retirement.sentence)
    assert lab.engine.report(model, first).retired == retired.retirement.sentence

    registry = lab.registry
    registry.move_alias(model, CHAMPION, first)  # by hand
    with pytest.raises(NothingToRollBack):
        lab.engine.rollback(model)
    registry.move_alias(model, CHAMPION, 0)
    accepted = lab.releases.accept(request_of(info), Trigger(kind="webhook", requested_at=time.time()))
    assert not accepted.queued
    before = triton(lab)
    stop(before)
    until(lambda: alive(triton(lab)) and triton(lab) != before)  # it loads what its repository has
    assert production(lab.site).serving(model) == 0
    with pytest.raises(NotFound):
        lab.ask(model, {"input": digits()[0][:1]})
    assert lab.engine.retire(model, 0, reason="again", force=False).retirement == retired.retirement

    second = lab.log_classifier(model, samples=1000)
    assert lab.wait(model, second).exit_code == 0
    assert production(lab.site).serving(model) == second
