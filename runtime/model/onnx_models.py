"""ONNX models in this process: signatures, sessions, answers, and the difference between two sets of answers."""

import contextlib
import ctypes
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto

from shiplift.runtime.base.errors import ExportFailed, MissingTool
from shiplift.runtime.base.patience import answering
from shiplift.runtime.model.tensors import Arrays, concatenate
from shiplift.runtime.model.text.comparing import text_difference
from shiplift.runtime.records.tensor import Datatype, Signature, TensorSpec

INLINE_BYTES = 1 << 30  # a protobuf holds at most 2 GiB, so larger weights go into separate files
_M_MMAP_THRESHOLD, _TIGHT, _LOOSE = -3, 1 << 17, 1 << 25  # mallopt's initial threshold, and the most it grows to
LARGE_BYTES = 64 << 20  # what is as large is not loaded twice to know more of it
_OBSERVED_BYTES = 32 << 20  # of inner tensors to observe in one run
_PROVIDERS = {False: ["CPUExecutionProvider"], True: ["CUDAExecutionProvider", "CPUExecutionProvider"]}
DATATYPES: dict[int, Datatype] = {
    TensorProto.BOOL: "BOOL",
    TensorProto.UINT8: "UINT8",
    TensorProto.UINT16: "UINT16",
    TensorProto.UINT32: "UINT32",
    TensorProto.UINT64: "UINT64",
    TensorProto.INT8: "INT8",
    TensorProto.INT16: "INT16",
    TensorProto.INT32: "INT32",
    TensorProto.INT64: "INT64",
    TensorProto.FLOAT16: "FP16",
    TensorProto.FLOAT: "FP32",
    TensorProto.DOUBLE: "FP64",
    TensorProto.STRING: "BYTES",
}


def signature_of(model: onnx.ModelProto) -> Signature:
    """The graph's inputs (initializers left out) and outputs.

    Raises:
        ExportFailed: a tensor has a type that Triton can't carry.
    """
    constants = {tensor.name for tensor in model.graph.initializer}
    return Signature(
        inputs=tuple(_spec(value) for value in model.graph.input if value.name not in constants),
        outputs=tuple(_spec(value) for value in model.graph.output),
    )


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    kind = value.type.tensor_type
    if kind.elem_type not in DATATYPES:
        raise ExportFailed(
            f"{value.name!r} is a {value.type.WhichOneof('value')} that Triton can't carry",
            do="Keep other outputs with `export.outputs`.",
        )
    shape = tuple(dim.dim_value or -1 for dim in kind.shape.dim)
    return TensorSpec(name=value.name, datatype=DATATYPES[kind.elem_type], shape=shape or (-1,))


_LOCALE = re.compile(r"Failed to construct locale with name:([^:\n]+)")


def session(path: Path, *, threads: int = 1, gpu: bool = False, lean: bool = False) -> ort.InferenceSession:
    """A session of the model file, on the CPU or on the machine's GPU.

    A `lean` session frees activations after each run instead of keeping an arena: for scoring, not for timing.

    Raises:
        ExportFailed: ONNX Runtime does not load the model.
        MissingTool: this machine's ONNX Runtime has no CUDA provider.
    """
    if gpu and "CUDAExecutionProvider" not in ort.get_available_providers():
        raise MissingTool(
            f"ONNX Runtime {ort.__version__} in this environment has no CUDA provider",
            do="Install onnxruntime-gpu instead on machines with a GPU.",
        )
    if gpu:
        ort.preload_dlls()  # loads CUDA's libraries from Python packages if the system has none
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if lean:
        options.enable_cpu_mem_arena, options.enable_mem_pattern = False, False
    try:
        return ort.InferenceSession(path, options, providers=_PROVIDERS[gpu])
    except Exception as error:
        if unknown := unknown_locale(path, error):
            raise unknown from error
        raise ExportFailed(
            f"ONNX Runtime {ort.__version__} does not load the model: {' '.join(str(error).split())[:400]}",
            do="Check its operators and opset.",
        ) from error


def unknown_locale(path: Path | str, error: Exception) -> ExportFailed | None:
    """The operators that change the case of texts as people of a language do which the system lacks, if that it is."""
    found = _LOCALE.search(str(error))
    if not found:
        return None
    locale = found[1].strip()
    nodes = onnx.load(path, load_external_data=False).graph.node
    names = [node.name or f"number {at}" for at, node in enumerate(nodes) if node.op_type == "StringNormalizer"]
    return ExportFailed(
        f"the operator StringNormalizer ({', '.join(names)}) asks for the locale {locale!r}, which this machine lacks",
        do="Log the graph with the operator's attribute `locale` set to 'C.UTF-8', which every machine has; or install "
        f"{locale!r} (`locale-gen`) on each machine and in each image that releases or serves the model.",
    )


def observing_session(graph: onnx.ModelProto, model: Path) -> ort.InferenceSession:
    """A session of a graph with inner tensors among its outputs; its weights are in the folder of `model`.

    Nothing is fused, so that every tensor is computed as the graph says. Weights are not repacked into another layout.
    """
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.enable_cpu_mem_arena, options.enable_mem_pattern = False, False
    file = model.with_name(f"{model.stem}-observed.onnx")
    try:
        onnx.save(graph, file)
        return ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    finally:
        file.unlink(missing_ok=True)


def observed_bytes(model: Path) -> int:
    """How many bytes of inner tensors to observe in one run: few in comparison with the weights next to the model."""
    return max(_OBSERVED_BYTES, stored_bytes(model) * 2 // 3)


def stored_bytes(model: Path) -> int:
    """The size of a model's file with its weights, which may be in files next to it."""
    return sum(file.stat().st_size for file in model.parent.iterdir() if file.is_file())


def sample_bytes(value: onnx.ValueInfoProto) -> int:
    """The size of one sample of a float tensor: unknown dimensions count as 1."""
    return 4 * math.prod(int(dim.dim_value) or 1 for dim in value.type.tensor_type.shape.dim)


def partition(sizes: Mapping[str, int], limit: int) -> list[list[str]]:
    """Tensor names in order, split into parts of at most `limit` bytes (or a single larger tensor)."""
    parts: list[list[str]] = []
    total = 0
    for name, size in sizes.items():
        if not parts or total + size > limit:
            parts.append([])
            total = 0
        parts[-1].append(name)
        total += size
    return parts


def release_memory() -> None:
    """Returns freed memory to the system: glibc keeps the heap, which large models leave fragmented."""
    with contextlib.suppress(OSError, AttributeError):  # another libc has no malloc_trim
        ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def tight_heap() -> Iterator[None]:
    """Returns large blocks to the system as they are freed, at the cost of page faults: for code that copies weights.

    Otherwise glibc raises its threshold for such blocks with each one that is freed, and keeps the holes (mallopt(3)).
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _TIGHT)
    try:
        yield
    finally:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LOOSE)
        release_memory()


def answer(running: ort.InferenceSession, inputs: Mapping[str, NDArray[Any]], *, step: int | None = None) -> Arrays:
    """The outputs by name, for all samples at once or `step` at a time. Text inputs are object arrays of `str`."""
    names = [node.name for node in running.get_outputs()]
    feeds = {
        name: array.astype(object) if array.dtype.kind in "US" else np.ascontiguousarray(array)
        for name, array in inputs.items()
    }
    count = len(next(iter(feeds.values())))
    step = count if step is None else min(step, count)
    if step == count:
        return _answer(running, names, feeds, count)
    parts = (slice(at, at + step) for at in range(0, count, step))
    return concatenate(
        [_answer(running, names, {name: array[part] for name, array in feeds.items()}, step) for part in parts]
    )


def _answer(running: ort.InferenceSession, names: list[str], feeds: Arrays, count: int) -> Arrays:
    with answering(count):
        return dict(zip(names, running.run(names, feeds), strict=True))


def takes_one_sample(running: Any) -> bool:
    """Whether a session's model takes a single sample at a time."""
    return any(node.shape and node.shape[0] == 1 for node in running.get_inputs())


def iterate_outputs(
    running: ort.InferenceSession, outputs: Sequence[str], inputs: Arrays
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yields output names and values, each copied out of ONNX Runtime on demand; `run` would copy all at once."""
    if any(array.dtype.kind in "OSU" for array in inputs.values()):  # an OrtValue can't hold text
        yield from _answer(running, list(outputs), dict(inputs), len(next(iter(inputs.values())))).items()
        return
    feeds = {name: ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array)) for name, array in inputs.items()}
    with answering(len(next(iter(inputs.values())))):
        values = running.run_with_ort_values(list(outputs), feeds)
    for name, value in zip(outputs, values, strict=True):
        yield name, value.numpy()


def differences(expected: NDArray[Any], actual: NDArray[Any]) -> tuple[float, float]:
    """The largest absolute difference, and its ratio to the largest expected value.

    Text and integers either agree (0) or differ (infinity), except for numbers in JSON. NaN against a number differs,
    and so do arrays of different sizes.
    """
    if expected.size != actual.size:
        return math.inf, math.inf
    expected, actual = expected.reshape(-1), actual.reshape(-1)
    if expected.dtype.kind in "OSU" or actual.dtype.kind in "OSU":
        return (text_difference(expected, actual),) * 2
    if expected.dtype.kind in "biu":
        same = np.array_equal(expected, actual)
    else:
        return _float_differences(expected.astype(np.float64), actual.astype(np.float64))
    return (0.0, 0.0) if same else (math.inf, math.inf)


def _float_differences(expected: NDArray[np.float64], actual: NDArray[np.float64]) -> tuple[float, float]:
    # Equal infinities agree, although their difference is NaN; and so does NaN with itself.
    agree = (expected == actual) | (np.isnan(expected) & np.isnan(actual))
    with np.errstate(invalid="ignore"):
        distances = np.where(agree, 0.0, np.abs(expected - actual))
    absolute = float(distances.max(initial=0))
    if math.isnan(absolute):
        return math.inf, math.inf
    scale = float(np.abs(expected[np.isfinite(expected)]).max(initial=0))
    return absolute, absolute / scale if scale else (math.inf if absolute else 0.0)
