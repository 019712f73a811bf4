import os
import threading
from pathlib import Path
from typing import Any

import pytest

from shiplift.pipelines.engines.local.engine import LocalEngine
from shiplift.pipelines.engines.local.releases import Releases
from shiplift.runtime.base.errors import Cancelled, NotAdmitted, NotFound, StackDown, UsageError
from shiplift.runtime.records.release import ReleaseReport
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.records.verdict import Outcome

MANUAL = Trigger(kind="manual")


def report(name: str, version: int = 1) -> ReleaseReport:
    return ReleaseReport(
        model="digits",
        version=version,
        verdict=Outcome.PASS,
        alias="champion",
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


def test_the_newest_report_of_a_version_is_found_here(tmp_path: Path) -> None:
    releases = Releases(tmp_path)
    for at, text in enumerate(("", "slo: {}", "load: {}")):
        name = releases.accept(Request(model="digits", version=1, spec=text), MANUAL).name
        releases.end(name, report(name))
        os.utime(releases.folder(name) / "result.json", (0, 100 - at))
    newest = LocalEngine(tmp_path).report("digits", 1)
    assert releases.order(newest.release).request.spec == ""


def test_a_report_that_is_not_here_is_asked_of_the_registry(tmp_path: Path) -> None:
    with pytest.raises(StackDown):
        LocalEngine(tmp_path).report("digits", 1)


def test_a_release_that_waits_is_cancelled_by_taking_it_off_the_queue(tmp_path: Path) -> None:
    releases = Releases(tmp_path)
    name = releases.accept(Request(model="digits", version=1), MANUAL).name
    other = releases.accept(Request(model="digits", version=2), MANUAL).name
    assert LocalEngine(tmp_path).cancel("digits", 1) == name
    assert releases.pending() == [other]
    assert LocalEngine(tmp_path).cancel("digits", 1) == ""
    report = releases.result(name)
    assert report is not None
    assert (report.outcome, report.exit_code) == ("cancelled", Cancelled.exit_code)


@pytest.mark.parametrize("kind", ["sweep", "webhook", "manual"])
def test_only_a_person_queues_a_cancelled_release_again(tmp_path: Path, kind: Any) -> None:
    releases = Releases(tmp_path)
    request = Request(model="digits", version=1)
    name = releases.accept(request, MANUAL).name
    LocalEngine(tmp_path).cancel("digits", 1)
    assert releases.accept(request, Trigger(kind=kind)).queued == (kind == "manual")
    assert releases.active(name) == (kind == "manual")


def test_the_last_lines_of_a_log_are_shown(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "triton.log").write_bytes(b"\xff\n" + b"".join(b"line %d\n" % n for n in range(100)))
    assert list(LocalEngine(tmp_path).logs("triton", lines=2, follow=False)) == ["line 98", "line 99"]
    assert len(list(LocalEngine(tmp_path).logs("triton", lines=500, follow=False))) == 101


def test_a_log_is_followed_as_it_grows(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    file = tmp_path / "logs" / "triton.log"
    file.write_text("one\n")
    lines = LocalEngine(tmp_path).logs("triton", lines=5, follow=True)
    assert next(lines) == "one"
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(next(lines)))
    reader.start()
    with file.open("a") as log:
        log.write("two\n")
    reader.join(timeout=120)
    assert read == ["two"]


@pytest.mark.parametrize("by_name", [True, False])
def test_the_log_of_a_release_is_found_by_its_version_or_its_name(tmp_path: Path, by_name: bool) -> None:
    releases = Releases(tmp_path)
    name = releases.accept(Request(model="digits", version=3), MANUAL).name
    (releases.folder(name) / "log.txt").write_text("hello\n")
    assert list(LocalEngine(tmp_path).logs(name if by_name else "digits/3", lines=5, follow=False)) == ["hello"]


@pytest.mark.parametrize("name", ["mlflow", "digits/3", "digits", "../../etc/passwd"])
def test_a_log_that_is_not_there_is_not_found(tmp_path: Path, name: str) -> None:
    with pytest.raises((NotFound, NotAdmitted, UsageError)):
        list(LocalEngine(tmp_path).logs(name, lines=5, follow=False))
