from pathlib import Path

import pytest

from shiplift.runtime.host.processor import core_capacities, cpu_flags, cpu_name, has_vnni, steady, steady_cores


def test_this_processor_is_asked_once() -> None:
    assert cpu_flags() is cpu_flags()
    assert cpu_name() is cpu_name()
    assert isinstance(has_vnni(), bool)
    assert steady_cores() >= 1


@pytest.mark.parametrize(
    ("share", "capacities", "cores"),
    [
        (1, [1024], 1),
        (0.5, [1024] * 64, 1),  # half a core is still one thread
        (1.5, [1024] * 64, 1),  # two threads would stand still for a part of each period
        (3.9, [1024] * 64, 3),
        (64, [1024] * 64, 64),
        (16, [1024] * 8 + [512] * 8, 8),  # of two kinds
        (8, [1024, *[880] * 3, *[350] * 4], 4),  # of three: the fastest alone is too few
        (2.5, [1024] * 8 + [512] * 8, 2),
        (8, [512] * 8, 8),  # slow ones are all that it may use
        (2, [], 1),
    ],
)
def test_steady_cores_are_whole_and_about_equally_fast(share: float, capacities: list[int], cores: int) -> None:
    assert steady(share, capacities) == cores


def test_capacities_are_linux_s_count_or_intel_s_two_kinds(tmp_path: Path) -> None:
    assert core_capacities({0, 1}, tmp_path) == [1024, 1024]
    (tmp_path / "cpu_atom").mkdir()
    (tmp_path / "cpu_atom/cpus").write_text("2-3,6\n")
    assert core_capacities({0, 2, 3, 6, 7}, tmp_path) == [1024, 512, 512, 512, 1024]
    for core, capacity in {0: "1024", 2: "381", 3: "no number"}.items():
        (tmp_path / f"system/cpu/cpu{core}").mkdir(parents=True)
        (tmp_path / f"system/cpu/cpu{core}/cpu_capacity").write_text(capacity)
    assert core_capacities({0, 2, 3}, tmp_path) == [1024, 381, 512]
