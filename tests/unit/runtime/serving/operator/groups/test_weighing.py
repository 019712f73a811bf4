"""How traffic is split over a revision's groups, and what stays as it was for a revision with a single one."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shiplift.runtime.serving.operator.groups.weighing import backends, by_revision, split
from tests.unit.runtime.serving.operator.world import World, name_of

A, B = name_of(1), f"{name_of(1)}--slow"


@given(st.integers(0, 10_000), st.lists(st.floats(0, 1e6), min_size=1, max_size=16))
def test_parts_add_up_and_each_is_within_one_of_its_proportion(total: int, amounts: list[float]) -> None:
    powers = {str(number): amount for number, amount in enumerate(amounts)}
    parts = split(total, powers)
    assert sum(parts.values()) == (total if any(amounts) else 0)
    assert all((parts[name] == 0) == (power == 0) for name, power in powers.items() if total >= len(amounts))
    assert all(part >= 0 for part in parts.values())
    if sum(amounts) and total >= len(amounts):
        for name, power in powers.items():
            assert abs(parts[name] - total * power / sum(amounts)) <= len(amounts)


@pytest.mark.parametrize(
    ("total", "powers", "expected"),
    [
        (10000, {"a": 300.0, "b": 100.0}, {"a": 7500, "b": 2500}),
        (10, {"a": 1.0, "b": 1.0, "c": 1.0}, {"a": 4, "b": 3, "c": 3}),
        (100, {"a": 1e6, "b": 1e-6}, {"a": 99, "b": 1}),  # what serves never rounds to 0
        (100, {"a": 5.0, "b": 0.0}, {"a": 100, "b": 0}),
        (0, {"a": 5.0, "b": 1.0}, {"a": 0, "b": 0}),
    ],
)
def test_the_largest_remainder_gets_what_is_left(
    total: int, powers: dict[str, float], expected: dict[str, int]
) -> None:
    assert split(total, powers) == expected


def test_a_service_without_several_groups_keeps_its_weights_in_percent() -> None:
    observed = World().look()
    weights = {name_of(1): 90, name_of(2): 10}
    assert backends(observed, weights) == weights
    assert by_revision(observed, weights) == weights


def grouped(ready: dict[str, int]) -> World:
    world = World()
    world.add_groups(1, fast=300, slow=100)
    world.pods = {name: {f"{name}-{number}": 0.0 for number in range(count)} for name, count in ready.items()}
    return world


@pytest.mark.parametrize(
    ("ready", "expected"),
    [
        ({A: 1, B: 1}, {A: 7500, B: 2500}),
        ({A: 1, B: 3}, {A: 5000, B: 5000}),
        ({A: 0, B: 1}, {A: 0, B: 10000}),
        ({A: 0, B: 0}, {A: 7500, B: 2500}),  # they have to go somewhere
    ],
)
def test_a_group_s_traffic_is_by_the_capacity_of_its_ready_pods(
    ready: dict[str, int], expected: dict[str, int]
) -> None:
    assert backends(grouped(ready).look(), {A: 100}) == expected


@given(st.integers(0, 100), st.integers(0, 5), st.integers(0, 5))
def test_the_share_of_a_canary_is_composed_with_its_groups_and_read_back_exactly(share: int, a: int, b: int) -> None:
    observed = grouped({A: a, B: b}).look()
    weights = {A: share, name_of(2): 100 - share}
    routed = backends(observed, weights)
    assert sum(routed.values()) == 10_000
    assert routed[name_of(2)] == (100 - share) * 100
    assert by_revision(observed, routed) == weights


def test_without_a_measured_capacity_every_pod_counts_the_same() -> None:
    world = grouped({A: 1, B: 3})
    world.revisions[A] = replace(world.revisions[A], capacity=None)
    assert backends(world.look(), {A: 100}) == {A: 2500, B: 7500}
