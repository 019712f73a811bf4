import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from shiplift.runtime.base.errors import DataInvalid
from shiplift.runtime.model import tensors
from shiplift.runtime.model.tensors import (
    as_input,
    batch_of,
    datatype,
    dump_npz,
    fits,
    inputs_in,
    load_npz,
    numpy_type,
)
from shiplift.runtime.records.tensor import Signature, TensorSpec
from tests.unit.examples import tensor

_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=6)
_names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=10).filter(
    lambda name: not name.endswith(".npy")
)
_arrays = npst.arrays(
    dtype=st.sampled_from([np.bool_, np.uint8, np.int32, np.int64, np.float16, np.float32, np.float64]),
    shape=npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)


@given(st.dictionaries(_names, _arrays, max_size=4))
def test_arrays_come_back_from_an_npz_as_they_were(arrays: dict[str, NDArray[Any]]) -> None:
    again = load_npz(dump_npz(arrays))
    assert again.keys() == arrays.keys()
    for name, array in arrays.items():
        assert (again[name].dtype, again[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(again[name], array)


@given(st.lists(_TEXT | _TEXT.map(str.encode), max_size=5))
def test_text_comes_back_as_text(items: list[Any]) -> None:
    again = load_npz(dump_npz({"x": np.array(items, dtype=object)}))["x"]
    assert again.tolist() == [item.decode() if isinstance(item, bytes) else item for item in items]


def test_the_same_arrays_are_the_same_bytes_in_any_order() -> None:
    a, b = np.arange(3), np.ones((2, 2), np.float32)
    assert dump_npz({"a": a, "b": b}) == dump_npz({"b": b.copy(), "a": a.copy()})


def test_a_file_is_read_like_its_bytes(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(3))
    assert load_npz(tmp_path / "a.npz")["x"].tolist() == [0, 1, 2]


def npz(**members: bytes) -> bytes:
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return body.getvalue()


def header(shape: tuple[int, ...], descr: str = "<f4") -> bytes:
    body = io.BytesIO()
    np.lib.format.write_array_header_1_0(body, {"descr": descr, "fortran_order": False, "shape": shape})
    return body.getvalue()


def savez(**arrays: Any) -> bytes:
    body = io.BytesIO()
    np.savez_compressed(body, **arrays)
    return body.getvalue()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not a zip",
        savez(x=np.arange(5))[:-30],
        savez(x=np.array([{"a": 1}, None], dtype=object)),
        npz(**{"x.npy": pickle.dumps(print)}),
        npz(**{"readme.txt": b"hello"}),
        npz(**{"x.npy": b""}),
        npz(**{"x.npy": b"\x93NUMPY"}),
        npz(**{"x.npy": header((10**15,))}),
        npz(**{"x.npy": header((-5,))}),
        npz(**{"x.npy": header((3,)) + b"1"}),
        npz(**{"x.npy": header((3,), "|O")}),
        npz(**{"x.npy": header((3,))[:20] + b"((((" + header((3,))[24:]}),
    ],
)
def test_what_is_no_npz_of_plain_arrays_is_refused(body: bytes) -> None:
    with pytest.raises(DataInvalid, match="can't be read as an NPZ file"):
        load_npz(body)


def test_an_npz_that_unpacks_to_more_than_fits_is_refused() -> None:
    body = savez(x=np.zeros(100_000, np.uint8))
    with pytest.raises(DataInvalid, match="unpacks to 100128 bytes, the limit is 50000"):
        load_npz(body, tensors.DataLimits(unpacked_bytes=50_000))
    with pytest.raises(DataInvalid, match="has 100000 samples, the limit is 10"):
        load_npz(body, tensors.DataLimits(samples=10))


def test_an_npz_whose_header_claims_more_than_it_holds_is_refused_before_memory_is_taken() -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (2**40,)})
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w") as archive:
        archive.writestr("x.npy", header.getvalue())
    with pytest.raises(DataInvalid, match=f"x.npy claims {2**43} bytes and holds"):
        load_npz(body.getvalue())


def test_14_mb_that_unpack_to_12_gib_are_refused_with_both_numbers() -> None:
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", b"")
        archive.infolist()[0].file_size = 12 << 30  # as the directory of the real one says
    with pytest.raises(DataInvalid, match=f"unpacks to {12 << 30} bytes, the limit is {4 << 30}") as error:
        load_npz(body.getvalue(), tensors.DATA_LIMITS)
    assert "policy.unpacked_mb" in error.value.do


@given(at=st.integers(0, 10**6), piece=st.binary(min_size=1, max_size=16))
def test_a_damaged_npz_is_read_or_refused_and_never_anything_else(at: int, piece: bytes) -> None:
    body = savez(x=np.arange(200), y=np.ones((3, 3), np.float32))
    at %= len(body)
    try:
        loaded = load_npz(body[:at] + piece + body[at + len(piece) :])
    except DataInvalid as error:
        assert error.what  # noqa: PT017 - either is right
    else:
        assert all(isinstance(array, np.ndarray) for array in loaded.values())


@pytest.mark.parametrize("name", ["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"])
def test_a_datatype_of_numbers_is_a_numpy_type_and_back(name: Any) -> None:
    assert datatype(numpy_type(name)) == name


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ("f2", "FP16"),
        ("f4", "FP32"),
        ("f8", "FP64"),
        ("O", "BYTES"),
        ("U5", "BYTES"),
        ("S5", "BYTES"),
        ("c8", None),
        ("M8[s]", None),
        ("f4,i4", None),
    ],
)
def test_a_numpy_type_is_a_datatype_where_triton_has_one(dtype: str, name: str | None) -> None:
    assert datatype(np.dtype(dtype)) == name


@pytest.mark.parametrize(
    ("shape", "array", "right"),
    [
        ((-1, 3), (5, 3), True),
        ((-1, 3), (0, 3), True),
        ((-1, -1), (5, 9), True),
        ((-1, 3), (5, 4), False),
        ((-1, 3), (5,), False),
        ((-1,), (5, 1), False),
        ((2, 3), (2, 3), True),
    ],
)
def test_a_shape_fits_where_every_fixed_size_is_met(
    shape: tuple[int, ...], array: tuple[int, ...], right: bool
) -> None:
    assert fits(np.zeros(array), tensor("x", *shape)) is right


def test_an_input_is_given_in_the_tensor_s_own_type() -> None:
    given_ = np.arange(6).reshape(2, 3).T
    array = as_input(given_, tensor("x", -1, 2))
    assert (array.dtype, array.flags.c_contiguous) == (np.dtype(np.float32), True)
    np.testing.assert_array_equal(array, given_)


def test_text_is_given_as_objects_whatever_it_was() -> None:
    for array in (np.array([["a"], ["ü"]]), np.array([[b"a"], ["ü".encode()]]), np.array([["a"], ["ü"]], dtype=object)):
        got = as_input(array, tensor("x", -1, 1, datatype="BYTES"))
        assert (got.dtype, got.tolist()) == (np.dtype(object), [["a"], ["ü"]])


@given(st.integers(1, 5), st.integers(1, 12))
def test_a_batch_has_the_first_samples_again_and_again(samples: int, size: int) -> None:
    got = batch_of({"x": np.arange(samples), "y": np.arange(samples) * 10}, size)
    assert got["x"].tolist() == [at % samples for at in range(size)]
    assert got["y"].tolist() == [at % samples * 10 for at in range(size)]


def test_only_optional_inputs_may_be_missing_from_a_reference() -> None:
    option = TensorSpec(name="option", datatype="FP32", shape=(-1,), optional=True)
    both = Signature(inputs=(tensor("x", -1), option), outputs=())
    ones, twos = np.ones(1), np.full(1, 2.0)
    assert inputs_in({"input/x": ones, "output/y": twos}, both) == {"x": ones}
    assert inputs_in({"input/x": ones, "input/option": twos}, both) == {"x": ones, "option": twos}
    with pytest.raises(KeyError):
        inputs_in({"input/option": twos}, both)


@pytest.mark.parametrize("content", [b"\xff\xd8\xff\xe0JFIF", b"caf\xe9", b"cut \xe2\x82"])
def test_bytes_that_are_no_text_are_refused_and_never_altered(content: bytes) -> None:
    array = np.array([content], dtype=object)
    for keep in (
        lambda: dump_npz({"input/file": array}),
        lambda: as_input(array, TensorSpec(name="file", datatype="BYTES", shape=(-1,))),
    ):
        with pytest.raises(DataInvalid, match=r"not UTF-8 text .* at byte \d") as refused:
            keep()
        assert "UINT8 with the shape [1, -1]" in refused.value.do
    assert dump_npz({"input/file": np.array(["café".encode()], dtype=object)})
