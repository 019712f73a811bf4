import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shiplift.pipelines.engines.local import engine as control
from shiplift.pipelines.engines.local.releases import Releases
from shiplift.runtime.base.errors import DataInvalid, NotAdmitted, NotFound, StackDown, UsageError
from shiplift.runtime.model.tensors import dump_npz
from shiplift.runtime.records.release import ReleaseReport
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.records.verdict import Outcome

MANUAL = Trigger(kind="manual")


@pytest.mark.parametrize(
    ("name", "parts"),
    [("digits", ("digits", None)), ("digits/3", ("digits", 3)), ("My Model/12", ("My Model", 12)), ("a/01", ("a", 1))],
)
def test_a_name_is_a_model_or_one_version_of_it(name: str, parts: tuple[str, int | None]) -> None:
    assert control.split(name) == parts


@pytest.mark.parametrize(
    "name",
    ["digits/", "digits/x", "digits/0", "digits/-1", "digits/1.0", "digits/²", "digits/٣", "digits/" + "9" * 5000],
)
def test_a_version_is_a_positive_number(name: str) -> None:
    with pytest.raises(UsageError, match="is not a version number"):
        control.split(name)


@pytest.mark.parametrize("name", ["", "/3", "../x/3", "a/b/3", "a:b", " a"])
def test_a_name_that_no_model_has_is_refused(name: str) -> None:
    with pytest.raises(NotAdmitted, match="can't be a model's name"):
        control.split(name)


def report(name: str, version: int = 1) -> ReleaseReport:
    return ReleaseReport(
        model="digits", version=version, verdict=Outcome.PASS, alias="champion", endpoint=None, stages=(), checks=(),
        release=name, reason="", exit_code=0, seconds=0, since_request_seconds=0, overhead_seconds=0,
    )  # fmt: skip


def test_the_newest_report_of_a_version_is_found_here(tmp_path: Path) -> None:
    releases = Releases(tmp_path)
    for at, text in enumerate(("", "slo: {}", "load: {}")):
        name = releases.accept(Request(model="digits", version=1, spec=text), MANUAL).name
        releases.end(name, report(name))
        os.utime(releases.folder(name) / "result.json", (0, 100 - at))
    newest = control.report_of(tmp_path, "digits", 1)
    assert releases.order(newest.release).request.spec == ""


def test_a_report_that_is_not_here_is_asked_of_the_registry(tmp_path: Path) -> None:
    with pytest.raises(StackDown):
        control.report_of(tmp_path, "digits", 1)


def test_a_release_that_waits_is_cancelled_by_taking_it_off_the_queue(tmp_path: Path) -> None:
    releases = Releases(tmp_path)
    name = releases.accept(Request(model="digits", version=1), MANUAL).name
    other = releases.accept(Request(model="digits", version=2), MANUAL).name
    assert control.cancel(releases, "digits", 1) == name
    assert releases.pending() == [other]
    assert control.cancel(releases, "digits", 1) == ""


def test_the_last_lines_of_a_log_are_shown(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "triton.log").write_bytes(b"\xff\n" + b"".join(b"line %d\n" % n for n in range(100)))
    assert list(control.log_lines(tmp_path, "triton", lines=2, follow=False)) == ["line 98", "line 99"]
    assert len(list(control.log_lines(tmp_path, "triton", lines=500, follow=False))) == 101


def test_a_log_is_followed_as_it_grows(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    file = tmp_path / "logs" / "triton.log"
    file.write_text("one\n")
    lines = control.log_lines(tmp_path, "triton", lines=5, follow=True)
    assert next(lines) == "one"
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(next(lines)))
    reader.start()
    with file.open("a") as log:
        log.write("two\n")
    reader.join(timeout=20)
    assert found == ["two"]


@pytest.mark.parametrize("by_name", [True, False])
def test_the_log_of_a_release_is_found_by_its_version_or_its_name(tmp_path: Path, by_name: bool) -> None:
    releases = Releases(tmp_path)
    name = releases.accept(Request(model="digits", version=3), MANUAL).name
    (releases.folder(name) / "log.txt").write_text("hello\n")
    assert list(control.log_lines(tmp_path, name if by_name else "digits/3", lines=5, follow=False)) == ["hello"]


@pytest.mark.parametrize("name", ["mlflow", "digits/3", "digits", "../../etc/passwd"])
def test_a_log_that_is_not_there_is_not_found(tmp_path: Path, name: str) -> None:
    with pytest.raises((NotFound, NotAdmitted, UsageError)):
        list(control.log_lines(tmp_path, name, lines=5, follow=False))


# --- files of requests ---


def test_a_request_is_read_from_npz_or_json(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(dump_npz({"x": np.arange(3)}))
    (tmp_path / "a.json").write_text(json.dumps({"x": [0, 1, 2]}))
    (tmp_path / "b.json").write_text("[0, 1, 2]")
    found: list[dict[str, Any]] = [control._request_arrays(tmp_path / n) for n in ("a.npz", "a.json", "b.json")]
    assert [{name: array.tolist() for name, array in one.items()} for one in found] == [
        {"x": [0, 1, 2]}, {"x": [0, 1, 2]}, {"": [0, 1, 2]},
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "{", "\x00", '{"x": [[1], [2, 3]]}', "[" * 100_000])
def test_a_request_that_is_neither_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DataInvalid, match="neither NPZ nor JSON"):
        control._request_arrays(tmp_path / "a.json")


def test_arrays_are_matched_to_inputs_by_name_and_a_single_one_by_itself(tmp_path: Path) -> None:
    one, two = np.zeros(1), np.ones(1)
    assert control._matched({"": one}, ["x"], tmp_path) == {"x": one}
    assert control._matched({"b": two, "a": one, "c": one}, ["a", "b"], tmp_path) == {"a": one, "b": two}
    with pytest.raises(DataInvalid, match="has no b; the model's inputs are a, b"):
        control._matched({"a": one}, ["a", "b"], tmp_path)


def test_an_answer_is_readable() -> None:
    said = control.readable({"model": "digits", "version": 3, "outputs": {"label": [[7]], "name": ["seven"]}})
    assert said == "digits version 3\nlabel: [[7]]\nname: ['seven']"
