from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from shiplift.runtime.model.samples import BATCHES, input_sets, random_like
from shiplift.runtime.model.tensors import datatype
from tests.unit.examples import tensor

_dtypes = st.sampled_from(["?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"]).map(np.dtype)
_examples = _dtypes.flatmap(
    lambda dtype: npst.arrays(
        dtype,
        npst.array_shapes(min_dims=1, max_dims=3, max_side=4),
        elements={"allow_nan": False, "allow_infinity": False} if dtype.kind == "f" else None,
    )
)


def spec_of(array: NDArray[Any]) -> Any:
    return tensor("x", -1, *array.shape[1:], datatype=datatype(array.dtype))


@given(_examples, st.integers(1, 9))
def test_random_samples_look_like_the_example_and_stay_in_its_range(example: NDArray[Any], count: int) -> None:
    (got,) = random_like({"x": example}, (spec_of(example),), count, seed=1).values()
    assert (got.dtype, got.shape) == (example.dtype, (count, *example.shape[1:]))
    if example.dtype.kind != "b":
        low, high = example.min(), example.max()
        slack = 1 if low == high and example.dtype.kind == "f" else 0
        assert (got.astype(np.float64) >= np.float64(low) - slack).all()
        assert (got.astype(np.float64) <= np.float64(high) + slack).all()
    if example.dtype.kind == "f":
        assert np.isfinite(got).all()


def test_the_same_seed_gives_the_same_samples_and_another_others() -> None:
    example = {"x": np.array([[0.0, 1.0]], np.float32)}
    specs = (tensor("x", -1, 2),)
    first, second, other = (random_like(example, specs, 4, seed=seed)["x"].tolist() for seed in (1, 1, 2))
    assert first == second != other


def test_text_is_chosen_from_the_example() -> None:
    example = {"x": np.array([["red"], ["blue"]], dtype=object)}
    got = random_like(example, (tensor("x", -1, 1, datatype="BYTES"),), 50, seed=0)["x"]
    assert (got.dtype, got.shape, set(got.ravel())) == (np.dtype(object), (50, 1), {"red", "blue"})


def test_parity_is_tried_on_the_example_and_on_several_batch_sizes() -> None:
    example = {"x": np.ones((3, 2), np.float32)}
    sets = input_sets(example, (tensor("x", -1, 2),), seed=0)
    assert {name: len(arrays["x"]) for name, arrays in sets.items()} == {
        "example": 3,
        **{f"random-{size}": size for size in BATCHES},
    }
    assert sets["example"] is example


@pytest.mark.parametrize("dtype", ["u1", "u8", "i8", "f2", "f8"])
def test_a_range_may_be_as_wide_as_its_type(dtype: str) -> None:
    limits = np.finfo(dtype) if dtype[0] == "f" else np.iinfo(dtype)
    example = {"x": np.array([[limits.min], [limits.max]], dtype)}
    got = random_like(example, (spec_of(example["x"]),), 20, seed=0)["x"]
    assert len(np.unique(got)) > 10


def test_as_many_values_are_missing_as_in_the_example() -> None:
    example = np.where(np.arange(40).reshape(10, 4) % 4 == 0, np.nan, 3.0)
    made = random_like({"x": example}, (spec_of(example),), 400, seed=1)["x"]
    assert 0.2 < np.isnan(made).mean() < 0.3
    assert np.isfinite(made).any(axis=0).all()
    nothing = np.full((2, 4), np.nan)
    assert np.isnan(random_like({"x": nothing}, (spec_of(nothing),), 5, seed=1)["x"]).all()
