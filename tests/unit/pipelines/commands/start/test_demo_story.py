"""Cleaning up after an interrupted demo, in real folders; only the registry is a fake."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shiplift.pipelines.commands.start import demo_story
from shiplift.pipelines.engines.local.releases import Releases
from shiplift.pipelines.engines.local.stack import Stack
from shiplift.runtime.base.errors import StackDown
from shiplift.runtime.host.processes import identify
from shiplift.runtime.records.process import Process
from shiplift.runtime.records.release import ReleaseReport
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.records.verdict import Outcome
from shiplift.runtime.store.registry.terms import VersionInfo


class FakeRegistry:
    """A registry whose webhooks may have been lost."""

    missed: tuple[VersionInfo, ...] = ()

    def __init__(self, uri: str, *, timeout_s: float) -> None:
        pass

    def newest(self) -> Iterator[VersionInfo]:
        yield from self.missed


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_story, "RestRegistry", FakeRegistry)


@pytest.fixture
def releases(tmp_path: Path) -> Releases:
    return Releases(tmp_path)


def running(home: Path, dispatcher: Process | None = None) -> Stack:
    """A stack whose dispatcher is this process, unless another is named."""
    ports = dict.fromkeys(("mlflow_port", "receiver_port", "http_port", "grpc_port", "metrics_port"), 1)
    stack = Stack(
        **ports,
        registry_uri="http://127.0.0.1:1",
        server_environment="",
        cache_mb=0,
        rate_limiter=False,
        sweep_s=60,
        since=0,
        processes={"dispatcher": dispatcher or identify(os.getpid())},
    )
    (home / "stack.json").write_text(stack.model_dump_json())
    return stack


def queued(releases: Releases, model: str, version: int) -> str:
    return releases.accept(Request(model=model, version=version), Trigger()).name


def report(name: str) -> ReleaseReport:
    return ReleaseReport(
        model="digits",
        version=3,
        verdict=Outcome.FAIL,
        alias="",
        endpoint=None,
        stages=(),
        checks=(),
        release=name,
        reason="slow",
        exit_code=20,
        seconds=0,
        since_request_seconds=0,
        overhead_seconds=0,
    )


def later(act: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(0.3, act)
    timer.start()
    return timer


def test_releases_of_its_own_model_are_waited_for_in_their_order_and_no_others(
    tmp_path: Path, releases: Releases
) -> None:
    third, second = queued(releases, "digits", 3), queued(releases, "digits", 2)
    other = queued(releases, "fraud", 1)

    def work() -> None:
        for name in (second, third):
            time.sleep(0.1)
            releases.end(name, report(name))

    worker = later(work)
    lines: list[str] = []
    demo_story.settle(tmp_path, running(tmp_path), lines.append)
    worker.join()
    assert not any(map(releases.active, (second, third)))
    assert releases.active(other)
    assert [line.split()[1] for line in lines] == [second, third]


def test_a_version_whose_webhook_was_lost_is_released_before_the_demo_begins(
    tmp_path: Path, releases: Releases, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = VersionInfo(name="digits", version=3, source="", run_id="", tags={}, created_at=1.0)
    monkeypatch.setattr(FakeRegistry, "missed", (info,))

    def work() -> None:
        (name,) = releases.of("digits", 3)
        releases.end(name, report(name))

    worker = later(work)
    demo_story.settle(tmp_path, running(tmp_path), lambda _: None)
    worker.join()
    (name,) = releases.of("digits", 3)
    assert releases.result(name) == report(name)


def test_a_release_that_is_taken_off_the_queue_is_not_waited_for(tmp_path: Path, releases: Releases) -> None:
    name = queued(releases, "digits", 3)
    worker = later((releases.folder(name) / "queued").unlink)
    demo_story.settle(tmp_path, running(tmp_path), lambda _: None)
    worker.join()


def test_without_a_dispatcher_nobody_waits_for_ever(tmp_path: Path, releases: Releases) -> None:
    queued(releases, "digits", 3)
    with pytest.raises(StackDown, match="the dispatcher is not running"):
        demo_story.settle(tmp_path, running(tmp_path, Process(pid=1, started_at=1)), lambda _: None)


def test_in_a_fresh_home_there_is_nothing_to_wait_for(tmp_path: Path) -> None:
    lines: list[str] = []
    demo_story.settle(tmp_path, running(tmp_path), lines.append)
    assert lines == []
