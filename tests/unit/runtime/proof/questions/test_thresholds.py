"""Values next to thresholds are on both sides of them, in every precision that may compute."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shiplift.runtime.proof.questions import thresholds

FINITE = st.floats(min_value=-1e30, max_value=1e30)


@given(FINITE)
def test_values_are_on_just_below_and_just_above(threshold: float) -> None:
    for kind in (np.float32, np.float64):
        values = thresholds.around(np.array([threshold]), np.dtype(kind))
        near = kind(threshold)
        assert values.dtype == kind
        assert {near, np.nextafter(near, kind(np.inf)), np.nextafter(near, kind(-np.inf))} <= set(values)


@given(FINITE)
def test_float32_rounds_some_value_across(threshold: float) -> None:
    """As float64 it is on one side of the threshold, as float32 on another side of the threshold as float32."""
    values = thresholds.around(np.array([threshold]), np.dtype(np.float64))
    narrow = np.float32(threshold)
    halfway = [(np.float64(narrow) + np.nextafter(narrow, np.float32(way))) / 2 for way in (np.inf, -np.inf)]
    sides = [half for half in halfway if {np.nextafter(half, np.inf), np.nextafter(half, -np.inf)} <= set(values)]
    assert len(sides) == 2
    assert any((values <= threshold) != (values.astype(np.float32) <= narrow))


def test_whole_numbers_are_next_to_it_and_in_their_dtype() -> None:
    cases = ((2.5, "int64", {2, 3}), (7.0, "int32", {6, 7, 8}), (-0.5, "uint8", {0}), (254.5, "uint8", {254, 255}))
    for threshold, dtype, expected in cases:
        values = thresholds.around(np.array([threshold]), np.dtype(dtype))
        assert values.dtype == dtype
        assert expected <= set(values.tolist())


def test_what_a_dtype_does_not_hold_is_left_out() -> None:
    assert not len(thresholds.around(np.array([1e300]), np.dtype(np.float32)))
    assert not len(thresholds.around(np.array([2.0**70]), np.dtype(np.int64)))
    assert len(thresholds.around(np.array([2.0**53]), np.dtype(np.int64)))
