"""What a shadow counts: rows that agree by output, and latencies in bounded memory."""

import numpy as np
import pytest

from shiplift.runtime.measure.shadowing.tally import Latencies, Tally, agreement
from shiplift.runtime.model.tensors import Arrays


def test_rows_agree_by_output_within_the_tolerances_of_the_proof() -> None:
    right = {"p": np.array([[0.5, 0.5], [0.1, 0.9]], np.float32), "label": np.array([b"a", b"b"], object)}
    given = {"p": np.array([[0.50001, 0.49999], [0.2, 0.8]], np.float32), "label": np.array([b"a", b"b"], object)}
    assert told(right, given) == {"p": [True, False], "label": [True, True]}


def test_rows_are_counted_in_the_slices_that_are_known() -> None:
    tally = Tally(champion=1, share=1, for_s=1, slices=frozenset({"country=DE", "label=1", "size=2"}))
    inputs = {"country": np.array([b"DE", b"<script>", b"DE"], object), "size": np.array([[2], [2], [3]])}
    tally.answers({"y": np.array([1, 2, 3])}, {"y": np.array([1, 0, 0])}, inputs)
    found = {each.slice: (each.rows, each.same) for each in tally.result(1).outputs}
    assert found == {"": (3, 1), "country=DE": (2, 1), "size=2": (2, 1)}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"y": [False, False]}),
        ({"z": np.zeros(2)}, {"y": [False, False], "z": [False, False]}),
        ({"y": np.zeros((3, 1))}, {"y": [False]}),  # other rows: the request counts as one
        ({"y": np.zeros((2, 5))}, {"y": [False, False]}),
    ],
)
def test_another_shape_or_name_agrees_in_no_row(given: dict[str, np.ndarray], expected: dict[str, object]) -> None:
    assert told({"y": np.zeros((2, 1))}, given) == expected


def test_an_output_without_rows_is_one_row() -> None:
    assert told({"y": np.array(3.0)}, {"y": np.array(3.0)}) == {"y": [True]}


def told(right: Arrays, given: Arrays) -> dict[str, list[bool]]:
    return {name: same.tolist() for name, same in agreement(right, given).items()}


def test_quantiles_are_known_to_within_a_percent() -> None:
    known = Latencies()
    for us in range(1, 10_001):
        known.add(us)
    latency = known.latency()
    assert latency is not None
    assert latency.p50_ms == pytest.approx(5, rel=0.01)
    assert latency.p99_ms == pytest.approx(9.9, rel=0.01)
    assert latency.low_ms <= latency.p99_ms <= latency.high_ms


def test_the_p99_are_compared_in_parts_of_the_time_that_say_something() -> None:
    tally = Tally(champion=3, share=0.2, for_s=12)
    for part in range(12):
        for _ in range(20 if part < 4 else 3):
            tally.took(1000, part + 0.5, challenger=False)
            tally.took(1500, part + 0.5, challenger=True)
    tally.fails()
    tally.answers({"y": np.zeros(2)}, {"y": np.zeros(2)}, {})
    seen = tally.result(12)
    assert (seen.requests, seen.failed, seen.outputs[0].same) == (2, 1, 2)
    assert seen.p99_ratios == pytest.approx([1.5] * 4, rel=0.02)
