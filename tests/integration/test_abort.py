"""A person ends a release, on a real stack: before its promotion, while the traffic moves, and too late."""

import threading

import pytest

from shiplift.pipelines.engines.answers import AbortedRelease
from shiplift.runtime.base.errors import Aborted, NothingToAbort
from shiplift.runtime.base.names import release_name
from shiplift.runtime.serving.machine import moving
from shiplift.runtime.serving.production import production
from shiplift.runtime.store.registry.terms import CHAMPION, TAG
from tests.integration.conftest import Lab, digits, until

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def begun(lab: Lab, model: str, version: int, stage: str) -> str:
    """Waits until a version's release is in a stage; returns the release's name."""
    name = release_name(model, version, "")

    def is_there() -> bool:
        position = lab.releases.notes(name).position() if lab.releases.folder(name).is_dir() else None
        return position is not None and position.stage == stage

    until(is_there, seconds=120)
    return name


def test_aborted_at_any_moment_the_champion_serves(lab: Lab) -> None:
    model = "aborted"
    with pytest.raises(NothingToAbort, match="is under way"):
        lab.engine.abort(model, "there is nothing")
    first = lab.log_classifier(model)
    assert lab.wait(model, first).exit_code == 0
    with pytest.raises(NothingToAbort, match="shiplift rollback"):
        lab.engine.abort(model, "too late")

    second = lab.log_classifier(model, samples=1000)
    begun(lab, model, second, "tune")
    answer = lab.engine.abort(model, "not today")
    assert (answer.version, answer.champion) == (second, first)
    assert answer.message.startswith("aborted by ")
    assert lab.engine.abort(model, "again") == answer

    answers: list[AbortedRelease] = []
    with production(lab.site).lock(model):  # the promotion waits for it
        name = lab.engine.order(f"{model}/{second}", "", again=True, allow_older=False).name
        begun(lab, model, second, "promote")
        thread = threading.Thread(target=lambda: answers.append(lab.engine.abort(model, "it looks wrong")))
        thread.start()
        until(lambda: (known := moving.moving(lab.home, model)) and known.abort)
    thread.join(timeout=120)
    report = lab.engine.result(name)
    assert (report.exit_code, report.outcome, report.heading) == (Aborted.exit_code, "aborted", "ABORTED")
    assert report.reason.startswith(answers[0].message)
    assert answers[0].message.endswith(": it looks wrong")
    assert lab.registry.version(model, second).tags[f"{TAG}outcome"] == "aborted"
    assert lab.registry.alias(model, CHAMPION) == first
    assert lab.ask(model, {"input": digits()[0][:1]})["version"] == first
    assert moving.moving(lab.home, model) is None

    assert lab.order(model, second, again=True).exit_code == 0
    assert production(lab.site).serving(model) == second
