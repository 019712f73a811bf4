"""ONNX models in this process: their signature, sessions, answers, and how far two sets of answers differ."""

import contextlib
import ctypes
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto

from shiplift.runtime.base.errors import ExportFailed, MissingTool
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.records.tensor import Datatype, Signature, TensorSpec

INLINE_BYTES = 1 << 30  # protobuf stops at 2 GiB: larger weights go into files of their own
_M_MMAP_THRESHOLD, _TIGHT, _LOOSE = -3, 1 << 17, 1 << 25  # where glibc's limit begins, and the most it grows to
_OBSERVED_BYTES = 32 << 20  # of tensors inside a model, looked at together
_PROVIDERS = {False: ["CPUExecutionProvider"], True: ["CUDAExecutionProvider", "CPUExecutionProvider"]}
_DATATYPES: dict[int, Datatype] = {
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
    if kind.elem_type not in _DATATYPES:
        raise ExportFailed(
            f"{value.name!r} is a {value.type.WhichOneof('value')} that Triton can't carry",
            do="Keep other outputs with `export.outputs`.",
        )
    shape = tuple(dim.dim_value or -1 for dim in kind.shape.dim)
    return TensorSpec(name=value.name, datatype=_DATATYPES[kind.elem_type], shape=shape or (-1,))


def session(path: Path, *, threads: int = 1, gpu: bool = False, lean: bool = False) -> ort.InferenceSession:
    """A session of the model file, on the processor or on the machine's GPU.

    A `lean` one gives activations back after each run instead of keeping room for the largest: to score, not to time.

    Raises:
        ExportFailed: ONNX Runtime does not take the model.
        MissingTool: this machine's ONNX Runtime has no CUDA provider.
    """
    if gpu and "CUDAExecutionProvider" not in ort.get_available_providers():
        raise MissingTool(
            f"ONNX Runtime {ort.__version__} of this environment has no CUDA provider",
            do="Install onnxruntime-gpu in its place on machines with a GPU.",
        )
    if gpu:
        ort.preload_dlls()  # CUDA's libraries from packages, where they are no part of the system
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if lean:
        options.enable_cpu_mem_arena, options.enable_mem_pattern = False, False
    try:
        return ort.InferenceSession(path, options, providers=_PROVIDERS[gpu])
    except Exception as error:
        raise ExportFailed(
            f"ONNX Runtime {ort.__version__} does not load the model: {' '.join(str(error).split())[:400]}",
            do="Check its operators and opset.",
        ) from error


def observing_session(graph: onnx.ModelProto, beside: Path) -> ort.InferenceSession:
    """A session of a graph that gives more tensors than the model did; its weights lie beside the file `beside`.

    Nothing is fused, so that every tensor is computed as the graph says; weights are not copied into another layout.
    """
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.enable_cpu_mem_arena, options.enable_mem_pattern = False, False
    file = beside.with_name(f"{beside.stem}-observed.onnx")
    try:
        onnx.save(graph, file)
        return ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    finally:
        file.unlink(missing_ok=True)


def observed_bytes(model: Path) -> int:
    """How much of a model's inner tensors to look at together: little beside its weights, which lie next to it."""
    weights: int = sum(file.stat().st_size for file in model.parent.iterdir() if file.is_file())
    return max(_OBSERVED_BYTES, weights * 2 // 3)


def least_bytes(value: onnx.ValueInfoProto) -> int:
    """What a float tensor takes where every dimension that is not known is 1: one sample of it."""
    return 4 * math.prod(int(dim.dim_value) or 1 for dim in value.type.tensor_type.shape.dim)


def in_parts(sizes: Mapping[str, int], most: int) -> list[list[str]]:
    """The names of tensors by their bytes, in order, in parts of at most `most` bytes or of one tensor."""
    parts: list[list[str]] = []
    held = 0
    for name, size in sizes.items():
        if not parts or held + size > most:
            parts.append([])
            held = 0
        parts[-1].append(name)
        held += size
    return parts


def give_back_memory() -> None:
    """Returns what was freed to the system: glibc keeps a heap that large models leave full of holes."""
    with contextlib.suppress(OSError, AttributeError):  # another libc has its own ways
        ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def tight_heap() -> Iterator[None]:
    """Every large block is given back as it is freed, which costs page faults: for what copies weights about.

    glibc raises its limit for such blocks with every one that is freed, and keeps the holes (mallopt(3)).
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _TIGHT)
    try:
        yield
    finally:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LOOSE)
        give_back_memory()


def answer(running: ort.InferenceSession, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
    """The outputs by name. Text inputs are object arrays of `str`."""
    names = [node.name for node in running.get_outputs()]
    feeds = {
        name: array.astype(object) if array.dtype.kind in "US" else np.ascontiguousarray(array)
        for name, array in inputs.items()
    }
    return dict(zip(names, running.run(names, feeds), strict=True))


def one_by_one(
    running: ort.InferenceSession, outputs: Sequence[str], inputs: Arrays
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Outputs and their names; each is copied out of ONNX Runtime as it is asked for, `run` would copy all of them."""
    if any(array.dtype.kind in "OSU" for array in inputs.values()):  # it makes no values of text
        yield from zip(outputs, running.run(list(outputs), inputs), strict=True)
        return
    given = {name: ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array)) for name, array in inputs.items()}
    for name, value in zip(outputs, running.run_with_ort_values(list(outputs), given), strict=True):
        yield name, value.numpy()


def stacked(answers: Sequence[Arrays]) -> Arrays:
    """Answers to consecutive batches as one."""
    return {name: np.concatenate([one[name] for one in answers]) for name in answers[0]}


def differences(wanted: NDArray[Any], got: NDArray[Any]) -> tuple[float, float]:
    """The largest absolute difference, and that difference relative to the largest value wanted.

    Text and integers either agree (0) or differ (infinity); NaN and sizes that differ are infinity too.
    """
    if wanted.size != got.size:
        return math.inf, math.inf
    wanted, got = wanted.reshape(-1), got.reshape(-1)
    if wanted.dtype.kind in "OSU" or got.dtype.kind in "OSU":
        same = np.array_equal(wanted.astype(str), got.astype(str))
    elif wanted.dtype.kind in "biu":
        same = np.array_equal(wanted, got)
    else:
        return _float_differences(wanted.astype(np.float64), got.astype(np.float64))
    return (0.0, 0.0) if same else (math.inf, math.inf)


def _float_differences(wanted: NDArray[np.float64], got: NDArray[np.float64]) -> tuple[float, float]:
    agree = wanted == got  # equal infinities agree, although their difference is NaN
    with np.errstate(invalid="ignore"):
        apart = np.where(agree, 0.0, np.abs(wanted - got))
    absolute = float(apart.max(initial=0))
    if math.isnan(absolute):
        return math.inf, math.inf
    scale = float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0))
    return absolute, absolute / scale if scale else (math.inf if absolute else 0.0)
