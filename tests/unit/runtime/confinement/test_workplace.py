"""Work folders: warm starts, and leftovers after kills."""

from pathlib import Path
from typing import Any

from shiplift.runtime.confinement.policy import Entry, SandboxLimits
from shiplift.runtime.confinement.workplace import cool, expect, warm, workplace

LIMITS = SandboxLimits(memory_mb=512, timeout_s=30)


def test_a_workplace_started_ahead_of_time_is_used_once_and_leaves_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        warm(Entry("os:listdir"), tmp_path)
    ahead = next(tmp_path.iterdir())
    for wanted in (ahead, None):
        with workplace(Entry("os:listdir"), tmp_path) as place:
            assert (place.folder == ahead) is (wanted is not None)
            (place.folder / "given").write_text("readable")
            value: Any
            value, _ = place.sandbox.run({"path": str(place.folder)}, LIMITS)
            assert sorted(value) == ["given", "work"]
    assert list(tmp_path.iterdir()) == []


def test_what_was_started_ahead_and_never_used_is_cleared(tmp_path: Path) -> None:
    warm(Entry("os:listdir"), tmp_path)
    assert list(tmp_path.iterdir())
    cool()
    assert list(tmp_path.iterdir()) == []


def test_a_child_that_was_told_what_to_expect_still_runs_its_request(tmp_path: Path) -> None:
    warm(Entry("os:listdir"), tmp_path)
    expect("sklearn")
    with workplace(Entry("os:listdir"), tmp_path) as place:
        place.sandbox.expect("pytorch")
        value: Any
        value, _ = place.sandbox.run({"path": str(place.folder)}, LIMITS)
        assert value == ["work"]
        place.sandbox.expect("onnx")  # gone by now: nothing happens
