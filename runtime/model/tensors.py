"""Arrays and their types in numpy, Triton and ONNX, and NPZ files that are never unpickled."""

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.base.errors import DataInvalid
from shiplift.runtime.records.tensor import Datatype, TensorSpec

Arrays = dict[str, NDArray[Any]]
MAX_NPZ_BYTES = 16 << 30

_NUMPY: dict[Datatype, type[np.generic]] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
}


def datatype(dtype: np.dtype[Any]) -> Datatype | None:
    """The Triton datatype of a numpy dtype: BYTES for text, None for what Triton can't carry (complex, dates)."""
    if dtype.kind in "OSU":
        return "BYTES"
    return next((name for name, kind in _NUMPY.items() if dtype == kind), None)


def numpy_type(name: Datatype) -> np.dtype[Any]:
    """The numpy dtype of a Triton datatype; BYTES is an object array of `str`."""
    return np.dtype(object) if name == "BYTES" else np.dtype(_NUMPY[name])


def load_npz(source: Path | bytes) -> Arrays:
    """The arrays of an NPZ file.

    Raises:
        DataInvalid: it is not an NPZ file, holds anything but plain arrays, or unpacks to more than 16 GiB.
    """
    name = source.name if isinstance(source, Path) else "the NPZ data"
    file: Any = source if isinstance(source, Path) else io.BytesIO(source)
    try:
        with zipfile.ZipFile(file) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > MAX_NPZ_BYTES:
            raise DataInvalid(f"{name} unpacks to {size} bytes, the limit is {MAX_NPZ_BYTES}", do="Log fewer samples.")
        with np.load(file, allow_pickle=False) as arrays:
            loaded = {key: arrays[key] for key in arrays.files}
        if invalid := [key for key, array in loaded.items() if not isinstance(array, np.ndarray)]:
            raise ValueError(f"{invalid[0]} is not an array")
    except DataInvalid:
        raise
    except Exception as error:  # zipfile, zlib, numpy and its header parser each raise their own
        raise DataInvalid(
            f"{name} can't be read as an NPZ file: {error}", do="Write it with `numpy.savez`, without object arrays."
        ) from error
    return loaded


def dump_npz(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The arrays as an NPZ file, byte for byte the same for the same content; text becomes unicode arrays."""
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w") as archive:
        for name in sorted(arrays):
            member = io.BytesIO()
            np.lib.format.write_array(member, _plain(arrays[name]), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), member.getvalue())
    return body.getvalue()


def fits(array: NDArray[Any], spec: TensorSpec) -> bool:
    """Whether an array's shape matches a tensor's, where -1 stands for any size."""
    return array.ndim == len(spec.shape) and all(
        expected in (-1, actual) for expected, actual in zip(spec.shape, array.shape, strict=True)
    )


def as_input(array: NDArray[Any], spec: TensorSpec) -> NDArray[Any]:
    """The array in the tensor's dtype; text becomes an object array of `str`, which ONNX Runtime requires."""
    if spec.datatype == "BYTES":
        return np.array([_text(item) for item in array.ravel()], dtype=object).reshape(array.shape)
    return np.ascontiguousarray(array, dtype=numpy_type(spec.datatype))


def batch_of(arrays: Mapping[str, NDArray[Any]], size: int) -> Arrays:
    """The first `size` samples along the first axis, repeated if there are fewer."""
    return {name: np.take(array, np.arange(size) % len(array), axis=0) for name, array in arrays.items()}


def _text(item: Any) -> str:
    return item.decode(errors="replace") if isinstance(item, bytes) else str(item)


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind != "O":
        return array
    return np.array([_text(item) for item in array.ravel()], dtype=np.str_).reshape(array.shape)
