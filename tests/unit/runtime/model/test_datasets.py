import io
from typing import Any

import numpy as np
import pytest

from shiplift.runtime.base.errors import DataInvalid
from shiplift.runtime.model.datasets import load_samples
from shiplift.runtime.model.tensors import dump_npz
from shiplift.runtime.records.tensor import TensorSpec
from tests.unit.examples import tensor

ONE = (tensor("x", -1, 3),)
INTEGER = (tensor("age", -1, 1, datatype="INT64"), tensor("city", -1, 1, datatype="BYTES"))
TWO = (tensor("age", -1, 1), tensor("city", -1, 1, datatype="BYTES"))


def npz(**arrays: Any) -> bytes:
    return dump_npz({name: np.asarray(array) for name, array in arrays.items()})


def csv(**columns: Any) -> bytes:
    import pandas as pd

    return str(pd.DataFrame(columns).to_csv(index=False)).encode()


def parquet(**columns: Any) -> bytes:
    import pandas as pd

    body = io.BytesIO()
    pd.DataFrame(columns).to_parquet(body)
    return body.getvalue()


def refused(body: bytes, name: str = "a.npz", inputs: tuple[TensorSpec, ...] = ONE) -> str:
    with pytest.raises(DataInvalid) as error:
        load_samples(body, name, inputs, "label")
    assert error.value.what.startswith(name) or name == "a.npz"
    return error.value.what


def test_arrays_are_matched_by_name_and_given_in_the_model_s_types() -> None:
    samples, labels = load_samples(npz(x=np.arange(6).reshape(2, 3), label=[1, 0]), "a.npz", ONE, "label")
    assert (samples["x"].dtype, samples["x"].tolist()) == (np.dtype(np.float32), [[0, 1, 2], [3, 4, 5]])
    assert labels is not None
    assert labels.tolist() == [1, 0]


def test_labels_may_be_missing() -> None:
    samples, labels = load_samples(npz(x=np.zeros((2, 3))), "a.npz", ONE, "label")
    assert (len(samples["x"]), labels) == (2, None)


def test_the_only_array_is_the_only_input_whatever_its_name() -> None:
    samples, _ = load_samples(npz(images=np.ones((2, 3)), label=[0, 1]), "a.npz", ONE, "label")
    assert samples["x"].shape == (2, 3)


@pytest.mark.parametrize(("write", "name"), [(csv, "a.csv"), (parquet, "a.parquet"), (csv, "deep/A.CSV")])
def test_the_columns_of_a_table_are_the_inputs(write: Any, name: str) -> None:
    body = write(age=[31, 45], city=["Bonn", "Köln"], label=["yes", "no"])
    samples, labels = load_samples(body, name, TWO, "label")
    assert samples["age"].tolist() == [[31], [45]]
    assert samples["city"].tolist() == [["Bonn"], ["Köln"]]
    assert labels is not None
    assert labels.tolist() == ["yes", "no"]


@pytest.mark.parametrize(("write", "name"), [(csv, "a.csv"), (parquet, "a.parquet")])
def test_the_columns_of_a_table_are_one_matrix_for_a_model_of_one_input(write: Any, name: str) -> None:
    samples, labels = load_samples(write(a=[1, 2], b=[3, 4], c=[5.5, 6], label=[0, 1]), name, ONE, "label")
    assert samples["x"].tolist() == [[1, 3, 5.5], [2, 4, 6]]
    assert labels is not None


@pytest.mark.parametrize(
    ("shape", "message"),
    [((2, 4), "'x' has shape (2, 4), the model takes (-1, 3)"), ((2, 3, 1), "shape (2, 3, 1)"), ((), "shape ()")],
)
def test_a_wrong_shape_is_told_with_the_right_one(shape: tuple[int, ...], message: str) -> None:
    assert message in refused(npz(x=np.zeros(shape)))


def test_a_wrong_type_is_told() -> None:
    assert "dtype <U1, the model takes FP32" in refused(npz(x=np.full((2, 3), "a")))
    assert "the model takes BYTES" in refused(npz(age=[1], city=[5]), inputs=TWO)
    assert "'x' has dtype" in refused(csv(a=[1, 2], b=["x", "y"], c=[1, 2]), "a.csv")


@pytest.mark.parametrize("kind", ["M8[s]", "c8"])
def test_dates_and_complex_numbers_are_no_numbers(kind: str) -> None:
    assert "the model takes FP32" in refused(npz(x=np.zeros((2, 3), kind)))


@pytest.mark.parametrize("bad", [np.inf, -np.inf])
def test_values_that_are_no_numbers_are_counted(bad: float) -> None:
    assert "'x' holds 1 NaN or infinite values" in refused(npz(x=[[np.nan, 2, bad]]))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_labels_that_are_no_numbers_are_refused(bad: float) -> None:
    """A missing label would make the score NaN, which is over no limit."""
    assert "'label' holds 1 NaN or infinite values" in refused(npz(x=np.zeros((2, 3)), label=[1.5, bad]))
    assert "'label' holds 1 NaN" in refused(csv(a=[1, 2], b=[1, 2], c=[1, 2], label=[0, None]), "a.csv")
    assert "'label' holds 1 missing" in refused(csv(a=[1, 2], b=[1, 2], c=[1, 2], label=["yes", None]), "a.csv")


def test_a_hole_in_a_table_is_a_missing_value_only_among_floats() -> None:
    rows, _ = load_samples(csv(a=[1, None], b=[1, 2], c=[1, 2]), "a.csv", ONE, "label")
    assert np.isnan(rows["x"]).tolist() == [[False] * 3, [True, False, False]]
    assert "'age' holds 1 NaN" in refused(csv(age=[1, None], city=["Bonn", "Jena"]), "a.csv", INTEGER)
    assert "'city' holds 1 missing" in refused(csv(age=[1, 2], city=["Bonn", None]), "a.csv", TWO)


def test_different_lengths_are_told() -> None:
    assert "different lengths: [1, 2]" in refused(npz(x=np.zeros((2, 3)), label=[1]))
    assert "different lengths: [1, 2]" in refused(npz(age=[1, 2], city=["a"]), inputs=TWO)


def test_data_without_a_single_sample_are_refused() -> None:
    assert "has no samples" in refused(npz(x=np.zeros((0, 3))))
    assert "has no samples" in refused(b"age,city,label\n", "a.csv", TWO)


def test_one_label_for_all_is_refused() -> None:
    assert "'label' is a single value" in refused(npz(x=np.zeros((2, 3)), label=np.array(1)))


@pytest.mark.parametrize(
    ("arrays", "there"),
    [({"y": [1], "z": [[1]]}, "y, z"), ({"label": [1]}, "none"), ({}, "none"), ({"age": [1]}, "age")],
)
def test_missing_inputs_are_told_with_what_there_is(arrays: dict[str, Any], there: str) -> None:
    message = refused(npz(**arrays), inputs=TWO)
    assert f"has the arrays {there}; the model's inputs are age, city" in message


@pytest.mark.parametrize("name", ["a.npz", "a.csv", "a.parquet"])
@pytest.mark.parametrize("body", [b"", b"\x00\xff\xfe\x00" * 50])
def test_a_file_that_is_not_what_its_name_says_is_refused(name: str, body: bytes) -> None:
    assert refused(body, name)


def test_a_file_of_another_kind_is_refused() -> None:
    assert "is not a .npz, .csv or .parquet file" in refused(b"{}", "a.json")


def test_a_list_of_values_stands_for_a_column() -> None:
    samples, _ = load_samples(npz(age=[31, 45], city=["Bonn", "Köln"]), "v.npz", TWO, "label")
    assert samples["age"].tolist() == [[31], [45]]
    assert samples["city"].tolist() == [["Bonn"], ["Köln"]]
