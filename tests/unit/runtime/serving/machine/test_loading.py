"""What is remembered of loads that failed, and when the next one may begin; no server runs."""

from pathlib import Path

from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.serving.machine.loading import Attempts, attempts
from shiplift.runtime.serving.machine.pauses import LONGEST_PAUSE_S, pause_s


def test_each_pause_is_twice_as_long_up_to_five_minutes() -> None:
    assert [pause_s(failures) for failures in range(11)] == [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, LONGEST_PAUSE_S]
    assert pause_s(10**6) == LONGEST_PAUSE_S == 300


def test_failures_in_a_row_are_counted_until_a_load_succeeds() -> None:
    first = Attempts(seconds=0.5).begun(998.0).ended(2.0, "no file", 1000.0)
    assert first == Attempts(failures=1, since=998.0, next_at=1001.0, why="no file", seconds=2.0)
    second = first.begun(1005.0).ended(1.0, "no memory", 1010.0)
    assert (second.failures, second.since, second.next_at, second.why) == (2, 998.0, 1012.0, "no memory")
    assert second.begun(1013.0).ended(3.0, "", 1020.0) == Attempts(seconds=3.0)


def test_a_load_during_which_the_server_died_counts_as_a_failure() -> None:
    interrupted = Attempts(seconds=0.5).begun(100.0).begun(102.0).begun(105.0)
    assert (interrupted.failures, interrupted.next_at, interrupted.why) == (3, 109.0, "")


def test_a_lost_or_torn_file_of_attempts_is_as_good_as_none(tmp_path: Path) -> None:
    assert attempts(tmp_path) == {}
    write_atomically(tmp_path / "loading.json", '{"m": {"fail')
    assert attempts(tmp_path) == {}
