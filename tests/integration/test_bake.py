"""A version that bakes, on a real stack: an alarm takes it back by itself, a quiet one passes, and abort means back."""

import pytest

from shiplift.runtime.base.errors import StillInUse
from shiplift.runtime.events.kinds import EventKind
from shiplift.runtime.events.outbox import Outbox
from shiplift.runtime.serving.machine import baking
from shiplift.runtime.serving.production import production
from shiplift.runtime.store.registry.terms import CHAMPION, PREVIOUS, TAG
from tests.integration.conftest import ONE_FORM, Lab, digits, until

pytestmark = [pytest.mark.integration, pytest.mark.slow]
QUIET = f"{ONE_FORM}promotion: {{bake: {{for: 4s}}}}\n"
# No answer takes so little time, so the alarm is certain as soon as there are requests enough.
TOO_SLOW = f"{ONE_FORM}promotion: {{bake: {{for: 10m, alarms: [answers, {{kind: p99, limit_ms: 0.001}}]}}}}\n"


def test_an_alarm_rolls_back_and_quiet_passes(lab: Lab) -> None:
    model = "baked"
    first = lab.log_classifier(model, spec=ONE_FORM)
    assert lab.wait(model, first).exit_code == 0

    second = lab.log_classifier(model, samples=1000, spec=TOO_SLOW)
    assert lab.wait(model, second).exit_code == 0
    known = baking.under_way(lab.home, model)
    assert known is not None
    assert (known.version, known.previous) == (second, first)
    with pytest.raises(StillInUse, match=r"stays ready: version 2 is baking .* of 10m"):
        lab.engine.retire(model, first, reason="", force=False)
    image = {"input": digits()[0][:1]}
    until(lambda: lab.ask(model, image) and production(lab.site).serving(model) == first)
    until(lambda: (over := baking.baking(lab.home, model)) and over.told)
    tags = lab.registry.version(model, second).tags
    assert tags[f"{TAG}outcome"] == "rolled back"
    assert tags[f"{TAG}reason"].startswith("rolled back while baking: at least ")
    assert (lab.registry.alias(model, CHAMPION), lab.registry.alias(model, PREVIOUS)) == (first, second)
    (event,) = [each for _, each in Outbox(lab.home).events(model=model) if each.kind is EventKind.ROLLED_BACK]
    assert (event.version, event.text) == (first, f"instead of version {second}, {tags[f'{TAG}reason']}")

    third = lab.log_classifier(model, samples=1100, spec=QUIET)
    assert lab.wait(model, third).exit_code == 0
    until(lambda: (over := baking.baking(lab.home, model)) and over.told)
    assert lab.registry.version(model, third).tags[f"{TAG}bake"] == "baked 4s without an alarm"
    assert production(lab.site).serving(model) == third

    fourth = lab.log_classifier(model, samples=900, spec=QUIET.replace("4s", "1h"))
    assert lab.wait(model, fourth).exit_code == 0
    until(lambda: getattr(lab.engine.status(model), "baking", "").endswith("of 1h"))  # once the heartbeat has asked it
    answer = lab.engine.abort(model, "it looks wrong")
    assert (answer.version, answer.champion) == (fourth, third)
    assert lab.registry.version(model, fourth).tags[f"{TAG}reason"] == answer.message
    assert baking.under_way(lab.home, model) is None
