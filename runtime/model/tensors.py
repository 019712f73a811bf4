"""Arrays and their types in numpy, Triton and ONNX, and NPZ files that are never unpickled."""

import io
import math
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.base.errors import DataInvalid
from shiplift.runtime.guest.python.values import MISSING, is_missing
from shiplift.runtime.records.tensor import Datatype, Signature, TensorSpec

Arrays = dict[str, NDArray[Any]]
MAX_NPZ_BYTES = 16 << 30
GOLDEN_SAMPLES = 8  # how many golden requests a package has: the first rows of its proof
GRAPH = "graph/"  # prefix of the golden arrays of a graph behind a model that takes text
MADE = "made/"  # prefix of texts that an export made, and of the original's answers: `made/input/NAME`
ROWS = "rows/"  # prefix of the number of rows in each golden request's answer, which is otherwise one
EARLIER = "version/"  # prefix of the golden arrays of a model's earlier versions: `version/2/input/NAME`
MEMBER = "member/"  # prefix of the golden arrays of a pipeline's members: `member/SERVED NAME/input/NAME`

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
    """The Triton datatype of a numpy dtype: BYTES for text, None for types that Triton can't carry (complex, dates)."""
    if dtype.kind in "OSU":
        return "BYTES"
    return next((name for name, kind in _NUMPY.items() if dtype == kind), None)


def numpy_type(name: Datatype) -> np.dtype[Any]:
    """The numpy dtype of a Triton datatype; BYTES is an object array of `str`."""
    return np.dtype(object) if name == "BYTES" else np.dtype(_NUMPY[name])


@dataclass(frozen=True, kw_only=True)
class DataLimits:
    """Limits on what a data file may unpack to: bytes in memory, and samples. Sites set both; see `SitePolicy`."""

    unpacked_bytes: int = 4 << 30
    samples: int = 10_000_000

    def check(self, name: str, unpacked_bytes: int, samples: int = 0) -> None:
        """Checks that a file of this size may be read.

        Raises:
            DataInvalid: it exceeds a limit.
        """
        ask = "or ask the owner of this site to raise"
        if unpacked_bytes > self.unpacked_bytes:
            raise DataInvalid(
                f"{name} unpacks to {unpacked_bytes} bytes, the limit is {self.unpacked_bytes}",
                do=f"Log fewer samples, {ask} `policy.unpacked_mb`.",
            )
        if samples > self.samples:
            raise DataInvalid(
                f"{name} has {samples} samples, the limit is {self.samples}",
                do=f"Log fewer samples, {ask} `policy.samples`.",
            )


OUR_LIMITS = DataLimits(unpacked_bytes=MAX_NPZ_BYTES, samples=2**40)  # for files that Shiplift itself wrote
DATA_LIMITS = DataLimits()


def load_npz(source: Path | bytes, limits: DataLimits = OUR_LIMITS, *, name: str = "") -> Arrays:
    """The arrays of an NPZ file, called `name`. Its headers' claims are checked before anything is allocated.

    Raises:
        DataInvalid: the file is not NPZ, holds anything but plain arrays, or exceeds `limits`.
    """
    name = name or (source.name if isinstance(source, Path) else "the NPZ data")
    file: Any = source if isinstance(source, Path) else io.BytesIO(source)
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            limits.check(name, sum(max(entry.file_size, 0) for entry in members))
            for entry in members:
                _check_member(archive, entry)
        if not isinstance(file, Path):
            file.seek(0)
        with np.load(file, allow_pickle=False) as arrays:
            loaded = {key: arrays[key] for key in arrays.files}
        if invalid := [key for key, array in loaded.items() if not isinstance(array, np.ndarray)]:
            raise ValueError(f"{invalid[0]} is not an array")
    except DataInvalid:
        raise
    except Exception as error:  # zipfile, zlib, numpy and its header parser each raise their own
        raise DataInvalid(
            f"{name} can't be read as an NPZ file: {error}",
            do="Write it with `numpy.savez`, without arrays of objects: `x = np.array(x.tolist())` makes one of "
            "numbers or texts.",
        ) from error
    limits.check(name, 0, max((len(array) for array in loaded.values() if array.ndim), default=0))
    return loaded


def _check_member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> None:
    """Checks that an array's header claims no more than its file holds, since numpy allocates the claimed size."""
    with archive.open(entry) as file:
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0}.get(version, np.lib.format.read_array_header_2_0)
        shape, _, dtype = read(file)
    claimed = math.prod(shape) * dtype.itemsize
    if claimed > entry.file_size:
        raise ValueError(f"{entry.filename} claims {claimed} bytes and holds {entry.file_size}")


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
    """The array in the tensor's dtype; text becomes an object array of `str`, which ONNX Runtime requires.

    A missing text becomes `MISSING`, by which a model's own process knows it.
    """
    if spec.datatype == "BYTES":
        items = [MISSING if is_missing(item) else text_of(item) for item in array.ravel()]
        return np.array(items, dtype=object).reshape(array.shape)
    return np.ascontiguousarray(array, dtype=numpy_type(spec.datatype))


def feeds(inputs: Arrays, specs: tuple[TensorSpec, ...]) -> Arrays:
    """Arrays with the dtypes and names of a model's inputs, matched by name, otherwise by order."""
    pairs = (
        [(spec, inputs[spec.name]) for spec in specs]
        if all(spec.name in inputs for spec in specs)
        else zip(specs, inputs.values(), strict=True)
    )
    return {spec.name: as_input(array, spec) for spec, array in pairs}


def batch_of(arrays: Mapping[str, NDArray[Any]], size: int) -> Arrays:
    """The first `size` samples along the first axis, repeated if there are fewer."""
    return {name: np.take(array, np.arange(size) % len(array), axis=0) for name, array in arrays.items()}


def one_by_one(arrays: Mapping[str, NDArray[Any]]) -> list[Arrays]:
    """Each sample along the first axis as a batch of its own."""
    count = len(next(iter(arrays.values())))
    return [{name: array[at : at + 1] for name, array in arrays.items()} for at in range(count)]


def under(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """The arrays whose names begin with `prefix`, by the rest of their names."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def first_requests(golden: Mapping[str, NDArray[Any]], count: int) -> Arrays:
    """The first `count` golden requests with their answers, as views.

    Requests of a pipeline's members, and of versions that are served in addition to the package's own, are left out.

    Arrays have one row for each request, except for answers with a `rows/NAME`, which says how many rows each request's
    has.
    """
    rows = under(ROWS, golden)
    ends = {f"output/{name}": int(each[:count].sum()) for name, each in rows.items()}
    own = {name: array for name, array in golden.items() if not name.startswith((MEMBER, EARLIER))}
    return {name: array[: ends.get(name, count)] for name, array in own.items()}


def first_of_each_version(golden: Mapping[str, NDArray[Any]], count: int) -> Arrays:
    """The first `count` golden requests of a package's own version, and of each other version that it serves."""
    some = first_requests(golden, count)
    earlier = {name.split("/")[1] for name in golden if name.startswith(EARLIER)}
    for prefix in (f"{EARLIER}{version}/" for version in sorted(earlier)):
        some |= {prefix + name: array for name, array in first_requests(under(prefix, golden), count).items()}
    return some


def filled(array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """An answer in a larger shape with the same number of rows, padded as `concatenate` pads shorter answers."""
    if array.ndim != len(shape) or len(array) != shape[0] or any(np.greater(array.shape, shape)):
        return array
    return np.pad(array, [(0, most - size) for most, size in zip(shape, array.shape, strict=True)])


def concatenate(batches: Sequence[Arrays]) -> Arrays:
    """The answers to consecutive batches as one set of arrays. Shorter ragged answers are padded with zeros."""
    return {name: _stacked([batch[name] for batch in batches]) for name in batches[0]}


def _stacked(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    if len({array.shape[1:] for array in arrays}) == 1 or len({array.ndim for array in arrays}) > 1:
        return np.concatenate(arrays)
    sizes = np.max([array.shape[1:] for array in arrays], axis=0)
    return np.concatenate([filled(array, (len(array), *sizes)) for array in arrays])


def text_of(item: Any, *, errors: str = "strict") -> str:
    """An item of an array of texts, which Triton and NumPy give as bytes or as str; `errors` is as in `bytes.decode`.

    Raises:
        DataInvalid: the item is bytes that are not UTF-8. Stored as text, they would differ when they are read again.
    """
    try:
        return item.decode(errors=errors) if isinstance(item, bytes) else str(item)
    except UnicodeDecodeError as error:
        raise DataInvalid(
            f"a tensor of BYTES has {len(item)} bytes that begin with {item[:12]!r} and are not UTF-8 text "
            f"({error.reason} at byte {error.start})",
            do="Take files and other bytes as UINT8 with the shape [1, -1]: tensors of BYTES are texts.",
        ) from error


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind != "O":
        return array
    return np.array([text_of(item) for item in array.ravel()], dtype=np.str_).reshape(array.shape)


def inputs_in(arrays: Mapping[str, NDArray[Any]], signature: Signature) -> Arrays:
    """The inputs among arrays that are named `input/NAME`; optional ones may be missing."""
    return {
        spec.name: arrays[f"input/{spec.name}"]
        for spec in signature.inputs
        if not spec.optional or f"input/{spec.name}" in arrays
    }
