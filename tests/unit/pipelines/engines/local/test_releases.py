import json
import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from shiplift.pipelines.engines.answers import Accepted
from shiplift.pipelines.engines.local.releases import MAX_ATTEMPTS, Releases
from shiplift.runtime.base.errors import AlreadyDecided, AwaitingApproval, NotFound, NothingToDecide
from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.records.decision import Decision
from shiplift.runtime.records.failure import Failure
from shiplift.runtime.records.process import Process
from shiplift.runtime.records.release import Event, ReleaseReport
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.records.verdict import Outcome

MANUAL, WEBHOOK, SWEEP = Trigger(kind="manual"), Trigger(kind="webhook"), Trigger(kind="sweep")
DIGITS = Request(model="digits", version=1)


@pytest.fixture
def releases(tmp_path: Path) -> Releases:
    return Releases(tmp_path)


def report(name: str, exit_code: int = 0, model: str = "digits", version: int = 1) -> ReleaseReport:
    return ReleaseReport(
        model=model,
        version=version,
        verdict=Outcome.PASS if exit_code == 0 else Outcome.FAIL,
        alias="",
        endpoint=None,
        stages=(),
        checks=(),
        release=name,
        reason="",
        exit_code=exit_code,
        failure=Failure(kind="x", exit_code=exit_code, what="", do="") if exit_code else None,
        seconds=0,
        since_request_seconds=0,
        overhead_seconds=0,
    )


def ended(releases: Releases, request: Request = DIGITS, *, exit_code: int = 0) -> str:
    name = releases.accept(request, WEBHOOK).name
    releases.end(name, report(name, exit_code, request.model, request.version))
    return name


def test_a_request_becomes_one_release_with_its_order(releases: Releases) -> None:
    accepted = releases.accept(DIGITS, WEBHOOK)
    assert (accepted.created, accepted.queued) == (True, True)
    assert (releases.order(accepted.name).request, releases.order(accepted.name).trigger) == (DIGITS, WEBHOOK)
    assert releases.names() == releases.pending() == [accepted.name]


def test_the_stage_under_way_is_the_newest_that_has_started_and_not_finished(releases: Releases) -> None:
    name = releases.accept(DIGITS, WEBHOOK).name
    assert releases.stage_under_way(name) is None
    before = time.time()
    for stage, kind in (("admit", "started"), ("admit", "finished"), ("tune", "started"), ("tune", "progress")):
        releases.tell(name, Event(stage=stage, target="cpu" if stage == "tune" else "", kind=kind))
    under_way = releases.stage_under_way(name)
    assert under_way is not None
    event, since = under_way
    assert (event.stage, event.target) == ("tune", "cpu")
    assert before - 1 < since < time.time() + 1
    releases.tell(name, Event(stage="tune", target="cpu", kind="finished"))
    assert releases.stage_under_way(name) is None


def test_the_same_request_again_changes_nothing(releases: Releases) -> None:
    first = releases.accept(DIGITS, WEBHOOK)
    again = releases.accept(DIGITS, SWEEP)
    assert again == Accepted(name=first.name, created=False, queued=False)
    assert releases.order(first.name).trigger == WEBHOOK


def test_another_version_or_another_spec_is_another_release(releases: Releases) -> None:
    requests = [DIGITS, Request(model="digits", version=2), Request(model="digits", version=1, spec="slo: {}")]
    assert len({releases.accept(request, WEBHOOK).name for request in requests}) == len(releases.names()) == 3


def test_a_version_with_the_number_of_a_deleted_one_is_another_release(releases: Releases) -> None:
    first, second, third = (DIGITS.model_copy(update={"registered_at": float(at)}) for at in (1, 2, 3))
    old = ended(releases, first)
    assert releases.accept(first, SWEEP) == Accepted(name=old, created=False, queued=False)
    new = releases.accept(second, WEBHOOK)
    assert (new.created, new.queued) == (True, True)
    assert releases.accept(second, SWEEP) == Accepted(name=new.name, created=False, queued=False)
    assert releases.accept(third, SWEEP).created
    assert (releases.order(old).request, releases.order(new.name).request) == (first, second)
    assert releases.result(old) is not None
    assert len(releases.of("digits", 1)) == 3


def test_a_release_of_an_earlier_shiplift_is_that_of_whichever_version_has_its_number(releases: Releases) -> None:
    name = ended(releases, DIGITS)
    assert releases.accept(DIGITS.model_copy(update={"registered_at": 1.0}), SWEEP).name == name


def test_fifty_threads_at_once_make_one_release(releases: Releases) -> None:
    together = Barrier(50)

    def accept(_: int) -> Accepted:
        together.wait()
        return releases.accept(DIGITS, WEBHOOK)

    with ThreadPoolExecutor(50) as pool:
        accepted = list(pool.map(accept, range(50)))
    assert [release.created for release in accepted].count(True) == 1
    assert len({release.name for release in accepted}) == 1
    assert [path.name for path in releases.root.iterdir()] == [accepted[0].name]


def _accept_many(home: Path) -> int:
    releases = Releases(home)
    return sum(releases.accept(Request(model="digits", version=v), WEBHOOK).created for v in range(1, 21))


def test_eight_processes_at_once_make_each_release_once(tmp_path: Path, releases: Releases) -> None:
    with multiprocessing.get_context("fork").Pool(8) as pool:
        created = pool.map(_accept_many, [tmp_path] * 8, chunksize=1)
    assert sum(created) == len(releases.names()) == len(list(releases.root.iterdir())) == 20


def test_a_model_s_versions_run_in_their_order_and_models_by_who_asked_first(releases: Releases) -> None:
    asked = [("digits", 3), ("fraud", 2), ("digits", 1), ("digits", 11), ("fraud", 1)]
    for at, (model, version) in enumerate(asked):
        name = releases.accept(Request(model=model, version=version), WEBHOOK).name
        write_atomically(releases.folder(name) / "queued", str(at))
    order = [releases.order(name).request for name in releases.pending()]
    assert [(request.model, request.version) for request in order] == [
        ("digits", 1),
        ("digits", 3),
        ("digits", 11),
        ("fraud", 1),
        ("fraud", 2),
    ]


def test_what_has_ended_is_not_pending_and_keeps_its_result(releases: Releases) -> None:
    name = ended(releases)
    assert (releases.pending(), releases.active(name)) == ([], False)
    assert releases.result(name) == report(name)


def test_a_release_that_was_never_finished_stays_pending(releases: Releases) -> None:
    name = releases.accept(DIGITS, WEBHOOK).name
    releases.begin(name)
    assert Releases(releases.root.parent).pending() == [name]


def test_a_half_made_folder_is_no_release(releases: Releases) -> None:
    (releases.root / ".digits-1-0.partial").mkdir(parents=True)
    (releases.root / "broken").mkdir()
    (releases.root / "broken" / "queued").write_text("not a time")
    assert releases.pending() == []
    assert releases.names() == ["broken"]


@pytest.mark.parametrize("exit_code", [0, 20, 21, 30, 31, 32, 33, 34, 65])
@pytest.mark.parametrize("trigger", [MANUAL, WEBHOOK, SWEEP])
def test_a_word_about_the_model_is_not_asked_for_again(releases: Releases, exit_code: int, trigger: Trigger) -> None:
    name = ended(releases, exit_code=exit_code)
    assert releases.accept(DIGITS, trigger) == Accepted(name=name, created=False, queued=False)
    assert releases.result(name) is not None


@pytest.mark.parametrize("exit_code", [40, 42, 46, 69, 70, 73, 75, 130])
def test_a_person_may_ask_again_after_a_failure_that_was_not_the_model_s(releases: Releases, exit_code: int) -> None:
    name = ended(releases, exit_code=exit_code)
    for trigger in (WEBHOOK, SWEEP):
        assert not releases.accept(DIGITS, trigger).queued
    assert releases.accept(DIGITS, MANUAL) == Accepted(name=name, created=False, queued=True)
    assert (releases.result(name), releases.pending(), releases.order(name).trigger) == (None, [name], MANUAL)


@pytest.mark.parametrize(
    "ask",
    [
        lambda releases: releases.accept(DIGITS, MANUAL, again=True),
        lambda releases: releases.accept(DIGITS, Trigger(kind="manual", allow_older=True)),
    ],
)
def test_a_rerun_is_queued_whatever_the_release_said(releases: Releases, ask: Callable[[Releases], Accepted]) -> None:
    name = ended(releases)
    releases.tell(name, Event(stage="a", kind="started"))
    assert ask(releases).queued
    assert (releases.events(name), releases.begin(name)) == (([], 0), 1)


def test_a_rerun_of_what_still_runs_is_not_queued_twice(releases: Releases) -> None:
    releases.accept(DIGITS, WEBHOOK)
    assert not releases.accept(DIGITS, MANUAL, again=True).queued


def test_a_release_that_left_the_queue_without_a_result_can_be_asked_for_again(releases: Releases) -> None:
    name = releases.accept(DIGITS, WEBHOOK).name
    (releases.folder(name) / "queued").unlink()
    assert releases.accept(DIGITS, WEBHOOK).queued


def test_attempts_are_counted_and_the_worker_is_known_while_it_lives(releases: Releases) -> None:
    name = releases.accept(DIGITS, WEBHOOK).name
    assert releases.worker(name) is None
    assert [releases.begin(name) for _ in range(MAX_ATTEMPTS)] == [1, 2, 3]
    worker = releases.worker(name)
    assert worker is not None
    assert worker.pid == os.getpid()
    write_atomically(
        releases.folder(name) / "worker.json", Process(pid=os.getpid(), started_at=0).model_dump_json()
    )  # the pid of a worker that is gone, used again
    assert releases.worker(name) is None


def test_an_ended_release_has_no_worker(releases: Releases) -> None:
    name = releases.accept(DIGITS, WEBHOOK).name
    releases.begin(name)
    releases.end(name, report(name))
    assert releases.worker(name) is None


def test_a_release_that_is_not_there_is_named(releases: Releases) -> None:
    with pytest.raises(NotFound, match="there is no release 'x'"):
        releases.order("x")
    assert (releases.result("x"), releases.events("x"), releases.active("x")) == (None, ([], 0), False)


def test_events_are_read_from_where_one_stopped(releases: Releases) -> None:
    name = releases.accept(DIGITS, WEBHOOK).name
    first = Event(stage="admit", kind="started")
    second = Event(stage="admit", kind="finished", outcome="ok", seconds=1.5)
    releases.tell(name, first)
    events, offset = releases.events(name)
    assert events == [first]
    assert releases.events(name, offset) == ([], offset)
    releases.tell(name, second)
    assert releases.events(name, offset)[0] == [second]
    assert releases.events(name)[0] == [first, second]


def test_a_line_being_written_is_left_for_next_time(releases: Releases) -> None:
    name = releases.accept(DIGITS, WEBHOOK).name
    releases.tell(name, Event(stage="größe", kind="started"))
    _, offset = releases.events(name)
    line = json.dumps({"at": 1, "stage": "tune", "kind": "started"})
    with (releases.folder(name) / "events.jsonl").open("a") as file:
        for piece in (line[:10], line[10:]):
            file.write(piece)
            file.flush()
            assert releases.events(name, offset) == ([], offset)
        file.write("\n")
    assert releases.events(name, offset)[0] == [Event(stage="tune", kind="started")]


def test_a_line_that_a_full_disk_cut_off_is_left_out(releases: Releases) -> None:
    name = releases.accept(DIGITS, WEBHOOK).name
    with (releases.folder(name) / "events.jsonl").open("a") as file:
        file.write('{"at": 1, "sta\n[]\n')
    releases.tell(name, Event(stage="tune", kind="started"))
    assert releases.events(name)[0] == [Event(stage="tune", kind="started")]


def test_a_model_s_releases_are_its_own_even_where_names_begin_alike(releases: Releases) -> None:
    """`a_b` and `a-b` make the same name of a release but for its digest, and `digits-1` begins like `digits`."""
    asked = [("digits", 1), ("digits", 10), ("digits-1", 1), ("a_b", 1), ("a-b", 1), ("fraud", 1)]
    for model, version in asked:
        releases.accept(Request(model=model, version=version), WEBHOOK)
    again = releases.accept(Request(model="digits", version=1, spec="slo: {}"), WEBHOOK).name
    (releases.root / "digits-1-broken").mkdir()
    requests_by = {(m, v): {releases.order(n).request for n in releases.of(m, v)} for m, v in asked}
    assert all({(r.model, r.version) for r in requests} == {key} for key, requests in requests_by.items())
    assert len(releases.of("digits", 1)) == 2
    assert again in releases.of("digits", 1)
    assert len(releases.of("digits")) == 3
    assert releases.of("none") == releases.of("digits", 2) == []


def test_the_folder_s_time_tells_that_something_was_queued(releases: Releases) -> None:
    assert releases.changed_at() == 0
    name = ended(releases)
    os.utime(releases.root, (0, 0))
    assert releases.accept(DIGITS, MANUAL, again=True).queued
    assert releases.changed_at() > 0
    os.utime(releases.root, (0, 0))
    assert releases.accept(Request(model="fraud", version=1), WEBHOOK).queued
    assert releases.changed_at() > 0
    assert name in releases.pending()


# --- decisions ---


def test_of_two_people_who_decide_at_once_the_first_counts_and_the_other_is_told(releases: Releases) -> None:
    name = ended(releases, exit_code=AwaitingApproval.exit_code)
    start = Barrier(2)

    def decide(decision: Decision) -> str:
        start.wait()
        try:
            return releases.decide("digits", 1, decision).name
        except AlreadyDecided as error:
            return str(error)

    decisions = (Decision(approved=True, by="ana", reason="checked"), Decision(approved=False, by="bob"))
    with ThreadPoolExecutor(2) as people:
        told = list(people.map(decide, decisions))
    made = releases.order(name).trigger.decision
    assert made in decisions
    assert releases.active(name)
    assert told[decisions.index(made)] == name
    assert f"digits/1 was already {made.sentence}" in told[1 - decisions.index(made)]


@pytest.mark.parametrize("state", ["nothing", "promoted", "under way"])
def test_nobody_decides_about_a_version_that_does_not_wait(releases: Releases, state: str) -> None:
    if state != "nothing":
        ended(releases)
    if state == "under way":
        releases.accept(DIGITS, MANUAL, again=True)
    with pytest.raises(NothingToDecide, match="digits/1 does not wait for approval"):
        releases.decide("digits", 1, Decision(approved=True, by="ana"))
