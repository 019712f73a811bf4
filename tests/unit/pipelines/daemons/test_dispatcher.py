import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from shiplift.pipelines.daemons import dispatcher
from shiplift.pipelines.daemons.dispatcher import ReleaseQueue
from shiplift.pipelines.engines.interruption import Interrupted
from shiplift.pipelines.engines.local.releases import Releases
from shiplift.pipelines.graph import Pipeline, Placement, Stage
from shiplift.runtime.base.errors import Cancelled
from shiplift.runtime.events.kinds import EventKind
from shiplift.runtime.events.outbox import Outbox
from shiplift.runtime.host.folders import scratch_folder
from shiplift.runtime.host.processes import start_child
from shiplift.runtime.records.failure import Failure
from shiplift.runtime.records.promotion import AliasDrift, Reinstated
from shiplift.runtime.records.release import Ending, ReleaseReport
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.verdict import Outcome
from shiplift.runtime.serving.champion import ADVICE
from shiplift.runtime.serving.machine.served import ServedPackage, note_served
from tests.unit.examples import package, site

WEBHOOK = Trigger(kind="webhook")


@pytest.fixture
def releases(tmp_path: Path) -> Releases:
    return Releases(tmp_path)


def accept(releases: Releases, version: int) -> str:
    return releases.accept(Request(model="digits", version=version), WEBHOOK).name


def end(releases: Releases, name: str) -> None:
    ended = ReleaseReport(
        model="digits",
        version=1,
        verdict=Outcome.PASS,
        alias="",
        endpoint=None,
        stages=(),
        checks=(),
        release=name,
        reason="",
        exit_code=0,
        seconds=0,
        since_request_seconds=0,
        overhead_seconds=0,
    )
    releases.end(name, ended)


def settle(releases: Releases) -> None:
    """As if nothing had been queued for a while."""
    os.utime(releases.root, (0, 1_000_000_000))


def test_everything_that_waits_is_found_until_it_has_ended(releases: Releases) -> None:
    queue = ReleaseQueue(releases)
    assert queue.waiting() == []
    names = [accept(releases, version) for version in (1, 2)]
    settle(releases)
    assert queue.waiting() == names
    end(releases, names[0])
    assert queue.waiting() == names[1:]
    end(releases, names[1])
    assert queue.waiting() == []


def test_what_is_queued_after_a_look_is_found_at_the_next(releases: Releases) -> None:
    queue = ReleaseQueue(releases, full_scan_s=1000)
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
    queue = ReleaseQueue(releases, full_scan_s=1000)
    end(releases, accept(releases, 1))
    assert queue.waiting() == []
    tick = releases.root.stat()
    late = accept(releases, 2)
    os.utime(releases.root, ns=(tick.st_atime_ns, tick.st_mtime_ns))
    assert queue.waiting() == [late]


def test_thousands_of_ended_releases_are_not_looked_through_again(
    releases: Releases, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = ReleaseQueue(releases, full_scan_s=1000)
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
    queue = ReleaseQueue(releases, full_scan_s=0)
    assert queue.waiting() == []
    (releases.folder(name) / "queued").write_text("1")
    settle(releases)
    assert queue.waiting() == [name]


def test_the_sweep_looks_into_each_model_once_and_again_when_its_aliases_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aliases = {"digits": {"champion": 2, "previous": 1}, "foreign": {"champion": 1}}
    asked: list[str] = []
    drift = AliasDrift(model="digits", alias="champion", named=3, version=2)

    class Registry:
        def models(self) -> Iterator[tuple[str, int, dict[str, int]]]:
            yield from ((model, 9, each) for model, each in aliases.items())

    def reinstate(_site: Site, model: str) -> Reinstated:
        asked.append(model)
        moved = aliases[model]["champion"] == 3
        aliases[model]["champion"] = 2
        return Reinstated(moved=(drift,) if moved else ())

    monkeypatch.setattr(dispatcher, "reinstate", reinstate)
    note_served(tmp_path, package())
    told: list[str] = []

    def sweep() -> int:
        asked.clear()
        dispatcher.reinstate_aliases(site(tmp_path), Registry(), told.append)
        return len(asked)

    assert (sweep(), sweep(), told) == (1, 0, [])
    aliases["digits"]["champion"] = 3
    assert sweep() == 1
    assert told == [f"{drift.sentence}. It was moved back; {ADVICE}."]
    assert (sweep(), sweep()) == (1, 0)
    assert "foreign" not in asked


def test_an_interrupted_stage_leaves_neither_processes_nor_folders(
    tmp_path: Path, releases: Releases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal arrives in the windows that no stage can close: before a server is noted, amid a removal."""

    def measure(site: Site) -> ServedPackage:
        folder = Path(tempfile.mkdtemp(prefix="shiplift-tune-", dir=site.home))
        (folder / "file").write_text("x")
        child = start_child(["sleep", "600"], environment={"PATH": os.environ["PATH"]}, log=tmp_path / "log")
        (tmp_path / "pid").write_text(str(child.pid))
        raise Interrupted(Cancelled("stopped by SIGINT", do="-"))

    def conclude(site: Site, request: Request, ending: Ending) -> ReleaseReport:
        assert ending.failure is not None
        return ReleaseReport(
            model="digits",
            version=1,
            verdict=Outcome.INCONCLUSIVE,
            alias="",
            endpoint=None,
            stages=(),
            checks=(),
            release=ending.release,
            reason="",
            exit_code=130,
            seconds=0,
            since_request_seconds=0,
            overhead_seconds=0,
        )

    never = Placement(keep="never")
    stages, last = (Stage(measure, never),), Stage(conclude, never)
    small = Pipeline("small", inputs=(Site, Request, Trigger), stages=stages, on_exit=last)
    monkeypatch.setattr(dispatcher, "RELEASE", small)
    name = accept(releases, 1)
    with scratch_folder(tmp_path) as of_a_rollback:
        worker = os.fork()
        if worker == 0:  # it ends every process below it
            try:
                dispatcher._run(releases, releases.order(name), name, site(tmp_path))
            finally:
                os._exit(0)
        os.waitpid(worker, 0)
        assert list(tmp_path.glob("shiplift-*")) == [of_a_rollback]
    result = releases.result(name)
    assert result is not None
    assert result.exit_code == 130
    with contextlib.suppress(psutil.NoSuchProcess):  # whoever inherited it may not have waited for it yet
        psutil.Process(int((tmp_path / "pid").read_text())).wait(120)


def test_others_are_told_how_a_release_ended_before_it_leaves_the_queue(releases: Releases, tmp_path: Path) -> None:
    name = accept(releases, 1)
    order = releases.order(name)
    failure = Failure.of(Cancelled("no", do="-"))
    report = order.report(name, failure)
    for _ in range(2):  # a process that was killed in between ends it again
        dispatcher._end(tmp_path, releases, name, order, report)
    ((_, event),) = Outbox(tmp_path).events()
    assert (event.kind, event.subject, event.release) == (EventKind.CANCELLED, "digits/1", name)
    assert not releases.active(name)
    (tmp_path / "events.db").write_text("no database at all, but a file that is long enough to be read as one")
    accept(releases, 2)
    dispatcher._end(tmp_path, releases, name, order, report)  # that nobody can be told stops no release
