"""A row that a person gives is one request, of the model's own types and shapes."""

import pytest

from shiplift.runtime.base.errors import UsageError
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.search.repeating import row_of
from tests.unit.examples import tensor

KNOWN = Signature(
    inputs=(
        tensor("x", -1, 3),
        tensor("id", -1, 1).model_copy(update={"datatype": "INT64"}),
        tensor("city", -1, 1).model_copy(update={"datatype": "BYTES"}),
    ),
    outputs=(tensor("y", -1),),
)


def test_values_are_a_row_of_tensors() -> None:
    row = row_of({"x": [1.5, float("nan"), -0.0], "id": 2**60 + 1, "city": "\u0141\u00f3d\u017a"}, KNOWN)
    assert {name: (array.dtype.name, array.shape) for name, array in row.items()} == {
        "x": ("float32", (1, 3)),
        "id": ("int64", (1, 1)),
        "city": ("object", (1, 1)),
    }
    assert row["id"].item() == 2**60 + 1
    assert row["city"].item() == "\u0141\u00f3d\u017a"


def test_values_that_do_not_fit_are_named() -> None:
    right = {"x": [1, 2, 3], "id": 1, "city": ""}
    for change, told in (
        ({"y": 1}, "no input 'y'"),
        ({"id": "one"}, "'id' is not of type INT64"),
        ({"id": 2**70}, "'id' is not of type INT64"),
        ({"x": [[1], [2, 3]]}, "'x' is not of type FP32"),
        ({"x": [1, 2]}, r"'x' has the shape \[1, 2\], the model takes \[-1, 3\]"),
    ):
        with pytest.raises(UsageError, match=told):
            row_of(right | change, KNOWN)
    with pytest.raises(UsageError, match="no value for the input 'city'"):
        row_of({"x": [1, 2, 3], "id": 1}, KNOWN)
