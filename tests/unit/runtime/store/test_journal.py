from pathlib import Path

import pytest

from shiplift.runtime.records.measurement import Trial
from shiplift.runtime.store.journal import Journal
from tests.unit.examples import trial


def journal(folder: Path) -> Journal[Trial]:
    return Journal(folder / "deep" / "journal.jsonl", Trial)


def test_what_was_added_is_found_by_the_next_process(tmp_path: Path) -> None:
    written = journal(tmp_path)
    assert written.get("a") is None
    written.add("a", trial(throughput_per_s=1))
    written.add("b", trial(throughput_per_s=2))
    for trials in (written, journal(tmp_path)):
        assert [trials.get(key) for key in "abc"] == [trial(throughput_per_s=1), trial(throughput_per_s=2), None]


def test_the_last_record_of_a_key_counts(tmp_path: Path) -> None:
    journal(tmp_path).add("a", trial(throughput_per_s=1))
    journal(tmp_path).add("a", trial(throughput_per_s=2))
    assert journal(tmp_path).get("a") == trial(throughput_per_s=2)


@pytest.mark.parametrize("kept", [1, 20, -2, -1])
def test_a_line_cut_off_by_a_kill_is_ignored_and_takes_no_other_with_it(tmp_path: Path, kept: int) -> None:
    file = tmp_path / "deep" / "journal.jsonl"
    journal(tmp_path).add("a", trial())
    whole = file.read_text()
    journal(tmp_path).add("b", trial())
    file.write_text(whole + file.read_text()[len(whole) :][:kept])
    journal(tmp_path).add("c", trial(p50_ms=1))
    again = journal(tmp_path)
    assert (again.get("a"), again.get("c")) == (trial(), trial(p50_ms=1))
    assert again.get("b") in ((None, trial()) if kept == -1 else (None,))


@pytest.mark.parametrize("line", ["", "[]", "5", "{}", '{"key": "x"}', '{"key": "x", "record": {"odd": 1}}', "\x00"])
def test_a_line_that_is_no_record_is_ignored(tmp_path: Path, line: str) -> None:
    file = tmp_path / "deep" / "journal.jsonl"
    journal(tmp_path).add("a", trial())
    with file.open("a") as lines:
        lines.write("\n" + line)
    journal(tmp_path).add("b", trial())
    again = journal(tmp_path)
    assert (again.get("a"), again.get("b"), again.get("x")) == (trial(), trial(), None)
