"""Where releases are that have not ended."""

import os
import time
from pathlib import Path

from shiplift.pipelines.engines.local import status
from shiplift.pipelines.engines.local.releases import Releases
from shiplift.runtime.records.release import Event
from shiplift.runtime.records.request import Request, Trigger


def accepted(releases: Releases, model: str, version: int = 1) -> str:
    return releases.accept(Request(model=model, version=version), Trigger(kind="webhook")).name


def test_a_release_is_told_with_its_stage_or_with_its_place_in_the_queue(tmp_path: Path) -> None:
    releases = Releases(tmp_path)
    running, starting, *_ = (accepted(releases, model) for model in ("digits", "prices", "faces", "words"))
    for name in (running, starting):
        releases.begin(name)  # this process works on it
    releases.tell(running, Event(stage="admit", kind="started"))
    releases.tell(running, Event(stage="admit", kind="finished"))
    releases.tell(running, Event(stage="tune", target="cpu", kind="started"))
    told = {each.model: each for each in status.under_way(releases)}
    assert os.getpid() == getattr(releases.worker(running), "pid", 0)
    assert str(told["digits"]) == f"releasing: tune for cpu, {told['digits'].seconds:.0f} s"
    assert 0 <= told["digits"].seconds < 60
    assert [str(told[model]) for model in ("prices", "faces", "words")] == [
        "releasing",
        "queued, place 1",
        "queued, place 2",
    ]


def test_one_that_nobody_works_on_any_more_waits_again(tmp_path: Path) -> None:
    releases = Releases(tmp_path)
    name = accepted(releases, "digits")
    releases.begin(name)
    releases.tell(name, Event(stage="tune", kind="started"))
    (releases.folder(name) / "worker.json").write_text('{"pid": 1, "started_at": 0}')
    assert [str(each) for each in status.under_way(releases)] == ["queued, place 1"]
    assert time.time() >= releases.queued_at(name)
