"""What a stopped demo leaves behind does not spoil the next demo in the same home."""

import pytest

from shiplift.pipelines.commands.start import demo_story
from shiplift.runtime.base.names import release_name
from shiplift.runtime.store.registry.terms import CHAMPION
from tests.integration.conftest import Lab, digits


@pytest.mark.slow
def test_a_demo_begins_when_the_release_of_a_stopped_one_has_ended_and_is_rolled_back(lab: Lab) -> None:
    first = lab.log_classifier(demo_story.MODEL)
    assert lab.wait(demo_story.MODEL, first).exit_code == 0
    (lab.home / "demo").mkdir()
    (lab.home / "demo" / "unfinished").write_text(str(first))
    third = lab.log_classifier(demo_story.MODEL, samples=1150)  # a demo that stops here leaves its release running

    messages: list[str] = []
    demo_story.settle(lab.home, lab.running, messages.append)
    result = lab.releases.result(release_name(demo_story.MODEL, third, ""))
    assert result is not None
    assert result.outcome == "promoted"
    assert lab.registry.alias(demo_story.MODEL, CHAMPION) == first
    assert lab.ask(demo_story.MODEL, {"input": digits()[0][:1]})["version"] == first
    assert not (lab.home / "demo" / "unfinished").exists()
    own = [line for line in messages if "earlier demo" in line]  # others are of versions that other tests registered
    assert ["waiting" in line for line in own] == [True, False]

    demo_story.settle(lab.home, lab.running, messages.append)
    assert len(messages) == 2
