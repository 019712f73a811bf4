import os
from pathlib import Path

import pytest

from shiplift.pipelines.daemons.dispatcher import Queue
from shiplift.pipelines.engines.local.releases import Releases
from shiplift.runtime.records.release import ReleaseReport
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.records.verdict import Outcome

WEBHOOK = Trigger(kind="webhook")


@pytest.fixture
def releases(tmp_path: Path) -> Releases:
    return Releases(tmp_path)


def accept(releases: Releases, version: int) -> str:
    return releases.accept(Request(model="digits", version=version), WEBHOOK).name


def end(releases: Releases, name: str) -> None:
    ended = ReleaseReport(
        model="digits", version=1, verdict=Outcome.PASS, alias="", endpoint=None, stages=(), checks=(), release=name,
        reason="", exit_code=0, seconds=0, since_request_seconds=0, overhead_seconds=0,
    )  # fmt: skip
    releases.end(name, ended)


def settle(releases: Releases) -> None:
    """As if nothing had been queued for a while."""
    os.utime(releases.root, (0, 1_000_000_000))


def test_everything_that_waits_is_found_until_it_has_ended(releases: Releases) -> None:
    queue = Queue(releases)
    assert queue.waiting() == []
    names = [accept(releases, version) for version in (1, 2)]
    settle(releases)
    assert queue.waiting() == names
    end(releases, names[0])
    assert queue.waiting() == names[1:]
    end(releases, names[1])
    assert queue.waiting() == []


def test_what_is_queued_after_a_look_is_found_at_the_next(releases: Releases) -> None:
    queue = Queue(releases, full_scan_s=1000)
    first = accept(releases, 1)
    end(releases, first)
    settle(releases)
    assert queue.waiting() == queue.waiting() == []
    second = accept(releases, 2)
    assert queue.waiting() == [second]
    end(releases, second)
    settle(releases)
    assert queue.waiting() == []
    assert releases.accept(Request(model="digits", version=1), Trigger(), again=True).queued
    assert queue.waiting() == [first]


def test_what_is_queued_within_the_same_tick_as_a_look_is_found_too(releases: Releases) -> None:
    queue = Queue(releases, full_scan_s=1000)
    end(releases, accept(releases, 1))
    assert queue.waiting() == []
    tick = releases.root.stat()
    late = accept(releases, 2)
    os.utime(releases.root, ns=(tick.st_atime_ns, tick.st_mtime_ns))
    assert queue.waiting() == [late]


def test_thousands_of_ended_releases_are_not_looked_through_again(
    releases: Releases, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(releases, full_scan_s=1000)
    end(releases, accept(releases, 1))
    settle(releases)
    assert queue.waiting() == []
    monkeypatch.setattr(releases, "names", lambda: pytest.fail("looked through"))
    assert queue.waiting() == []


def test_a_queue_that_only_a_full_look_finds_is_found(releases: Releases) -> None:
    """A file put back by hand, or a clock that stood still."""
    name = accept(releases, 1)
    end(releases, name)
    settle(releases)
    queue = Queue(releases, full_scan_s=0)
    assert queue.waiting() == []
    (releases.folder(name) / "queued").write_text("1")
    settle(releases)
    assert queue.waiting() == [name]
