"""Bounds are exact: the next float is on the other side."""

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import PowerTransformer, QuantileTransformer, StandardScaler

from shiplift.runtime.model.reading.rounding import below_float32, last_up_to, up_to_float32

FINITE = st.floats(min_value=-1e30, max_value=1e30)


@given(FINITE)
def test_a_bound_is_the_last_float64_on_its_side_of_a_comparison_in_float32(threshold: float) -> None:
    narrow = float(np.float32(threshold))
    sides: list[tuple[Callable[[Any], Any], float, Callable[[Any], Any]]] = [
        (up_to_float32, threshold, lambda x: float(np.float32(x)) <= threshold),
        (below_float32, narrow, lambda x: np.float32(x) < np.float32(narrow)),
    ]
    for bound_of, value, goes_left in sides:
        bound = bound_of(np.array([value]))[0]
        assert goes_left(bound)
        assert not goes_left(np.nextafter(bound, np.inf))


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=5))
def test_a_bound_behind_a_rising_function_is_exact(bounds: list[float]) -> None:
    wanted = np.array(bounds).reshape(-1, 1)
    for dtype in (np.dtype(np.float32), np.dtype(np.float64)):
        for function in (  # python's numbers keep numpy's dtype
            lambda x: (x - 3) / 7,
            lambda x: np.arctan(x) * 1000,
            np.exp,
        ):
            found = last_up_to(function, wanted, dtype)
            there = np.isfinite(found)
            last = found[there].astype(dtype)
            assert (function(last) <= wanted[there]).all()
            assert (function(np.nextafter(last, dtype.type(np.inf))) > wanted[there]).all()
            assert (there | (wanted < 0) | (wanted > 1000)).all()


def test_scalers_of_scikit_learn_are_inverted_in_the_dtype_of_the_input() -> None:
    data = np.random.default_rng(0).gamma(2, 50, size=(300, 2))
    for scaler in (StandardScaler(), PowerTransformer(), QuantileTransformer(n_quantiles=50)):
        scaler.fit(data)
        for dtype in (np.dtype(np.float32), np.dtype(np.float64)):
            bounds = scaler.transform(data[:9].astype(dtype)).astype(np.float64)
            found = last_up_to(scaler.transform, bounds, dtype).astype(dtype)
            assert np.isfinite(found).all()
            assert (scaler.transform(found) <= bounds).all()
            assert (scaler.transform(np.nextafter(found, dtype.type(np.inf))) > bounds).all()
