"""8-bit and half precision with ONNX Runtime: calibrated Q/DQ, dynamic INT8, and FP16 and BF16 with FP32 I/O.

Calibration runs the model once: all methods take their ranges from the same streamed histograms, so that another
method, or another layer left in float, costs a graph rewrite but no inference. Settings follow ONNX Runtime's
quantization guide: on x86, activations are unsigned and weights signed; without VNNI, products saturate at 16 bits, so
weights get 7 bits (`reduce_range`); TensorRT accepts only symmetric Q/DQ. A prepared model has its weights in a
separate file, so that graphs are read and rewritten without them, and sessions map them instead of copying them.
"""

import contextlib
import io
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from shiplift.runtime.base.errors import QuantizeFailed
from shiplift.runtime.host.processor import has_vnni
from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.tensors import Arrays, batch_of
from shiplift.runtime.spec.model import Method, Quantization
from shiplift.runtime.spec.target import Target

_BATCH = 32
_FINE_BINS, _COARSE_BINS = 2048, 128  # ONNX Runtime's own values for percentile and entropy
_MOST_FINE, _MOST_COARSE = 16 * _FINE_BINS, 8 * _COARSE_BINS
_COUNTED = 1 << 19  # values of a tensor that are counted for each run of some samples
_WEIGHTS = "weights.bin"
LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_RECURRENT_OR_ATTENTIVE = {
    "Attention",
    "GRU",
    "LSTM",
    "LayerNormalization",
    "MultiHeadAttention",
    "RMSNormalization",
    "RNN",
    "SimplifiedLayerNormalization",
    "SkipLayerNormalization",
}
# Around convolutions, every operator with an 8-bit kernel stays in 8 bits; elsewhere only matrix products gain from it.
_CONVOLUTIONAL = (
    *LAYERS,
    "Add",
    "AveragePool",
    "Clip",
    "Concat",
    "Flatten",
    "GlobalAveragePool",
    "LeakyRelu",
    "MaxPool",
    "Mul",
    "Pad",
    "Relu",
    "Reshape",
    "Resize",
    "Sigmoid",
    "Split",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
)


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """How to write an 8-bit graph, depending on the target and the kind of model."""

    op_types: tuple[str, ...]
    attentive: bool
    symmetric: bool
    reduce_range: bool
    per_channel: bool


def scheme(model: Path, target: Target, settings: Quantization) -> Scheme:
    """The scheme for a model file on a target."""
    attentive = has_attention(model)
    vnni = target.accelerator == "cpu-vnni" or (target.accelerator == "cpu" and has_vnni())
    return Scheme(
        op_types=LAYERS if attentive else _CONVOLUTIONAL,
        attentive=attentive,
        symmetric=target.gpu,
        reduce_range=target.accelerator in ("cpu", "cpu-avx2") and not vnni,
        per_channel=settings.per_channel,
    )


def has_attention(model: Path) -> bool:
    """Whether the model is a transformer or recurrent: activations vary so much that dynamic INT8 is worth trying."""
    graph = onnx.load(model, load_external_data=False).graph
    return any(node.op_type in _RECURRENT_OR_ATTENTIVE for node in graph.node)


def layers(prepared: Path) -> tuple[str, ...]:
    """The names of the layers with weights, in the graph's order. These layers can be left in float."""
    graph = onnx.load(prepared, load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    return tuple(node.name for node in graph.node if node.op_type in LAYERS and set(node.input[1:2]) & weights)


def import_tools() -> None:
    """Imports the tools that this module's functions would otherwise import when called."""
    import onnxruntime.quantization  # noqa: PLC0415 - 0.2 s each
    import onnxruntime.transformers.float16  # noqa: F401, PLC0415


@contextlib.contextmanager
def building(precision: str) -> Iterator[None]:
    """Turns any error of ONNX Runtime's tools into `QuantizeFailed`; mutes their output and frees their memory."""
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    except QuantizeFailed:
        raise
    except Exception as error:
        raise QuantizeFailed(
            f"{precision} can't be built: {type(error).__name__}: {' '.join(str(error).split())[:300]}",
            do=f"Leave {precision} out of the target's precisions.",
        ) from error
    finally:
        root.setLevel(before)
        onnx_models.release_memory()


# --- INT8 -----------------------------------------------------------------------------------------------------------


def prepare(model: Path, to: Path) -> Path:
    """Writes the model with inferred shapes, basic optimizations, and a name for every node.

    Raises:
        QuantizeFailed: ONNX Runtime can't read it.
    """
    with building("int8"):
        _optimize(model, to)
        prepared = onnx.load(to, load_external_data=False)
        if _untyped(prepared.graph):
            _infer_symbolically(model, to)
            prepared = onnx.load(to, load_external_data=False)
        for index, node in enumerate(prepared.graph.node):
            node.name = node.name or f"{node.op_type}_{index}"
        onnx.save(prepared, to)
    return to


def _optimize(model: Path, to: Path) -> None:
    """Does the first part of `quant_pre_process` without holding the model three times.

    The optimized graph's weights go straight into a separate file, and shapes are inferred without them.
    """
    import onnxruntime as ort  # noqa: PLC0415 - already loaded

    graph = to.with_name("optimized.onnx")
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(graph)
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", _WEIGHTS)
    ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    onnx.shape_inference.infer_shapes_path(str(graph), str(to))
    graph.unlink()


def _infer_symbolically(model: Path, to: Path) -> None:
    """Infers shapes with `quant_pre_process`, which knows more operators but imports all of torch (3 s)."""
    from onnxruntime.quantization.shape_inference import quant_pre_process  # noqa: PLC0415

    (to.parent / _WEIGHTS).unlink(missing_ok=True)
    quant_pre_process(
        str(model), str(to), save_as_external_data=True, all_tensors_to_one_file=True, external_data_location=_WEIGHTS
    )


def _untyped(graph: onnx.GraphProto) -> bool:
    """Whether a layer's output has no known type and so can't be calibrated."""
    typed = {value.name for value in (*graph.value_info, *graph.output)}
    return any(node.op_type in LAYERS and node.output[0] not in typed for node in graph.node)


def ranges(
    prepared: Path, samples: Arrays, op_types: tuple[str, ...], settings: Quantization, folder: Path
) -> dict[Method, Path]:
    """Runs the samples once and writes the ranges; returns the file of each method.

    Raises:
        QuantizeFailed: the model does not run on the samples, or yields no ranges.
    """
    from onnxruntime.quantization.calibrate import HistogramCollector  # noqa: PLC0415 - 0.2 s

    with building("int8"):
        fine = HistogramCollector("percentile", False, _FINE_BINS, _COARSE_BINS, settings.percentile, "same")
        coarse = HistogramCollector("entropy", False, _COARSE_BINS, _COARSE_BINS, settings.percentile, "same")
        for tensor in map(_thinned, _observe(prepared, samples, op_types)):
            _count(fine, tensor, _MOST_FINE)
            if "entropy" in settings.methods:
                _count(coarse, tensor, _MOST_COARSE)
        compute = {
            "minmax": lambda: {name: (entry[2], entry[3]) for name, entry in fine.histogram_dict.items()},
            "percentile": fine.compute_percentile,
            "entropy": coarse.compute_entropy,
        }
        return {method: _write_ranges(compute[method](), ranges_file(folder, method)) for method in settings.methods}


def _count(collector: Any, tensor: Arrays, most: int) -> None:
    """Adds a tensor to its histogram, and keeps the number of bins near `most`.

    ONNX Runtime's histogram keeps the bin width of its first values. After a nearly blank sample it can grow to any
    number of bins, and the entropy search takes time with the square of that number.
    """
    ((name, array),) = tensor.items()
    before = collector.histogram_dict.get(name)
    if before is not None and array.size:
        reach, bound = float(np.abs(array).max()), float(before[4])
        growth = max(1.0, reach / bound) if bound else 1.0  # without a bound, the new values set it
        if 2 * growth > most:
            collector.histogram_dict[name] = _at_zero(before, reach, collector.num_bins)
        elif len(before[0]) * growth > most:
            collector.histogram_dict[name] = _coarser(before, max(2, int(most / growth)))
    collector.collect_value(tensor)


def _at_zero(histogram: tuple[Any, ...], bound: float, bins: int) -> tuple[Any, ...]:
    """A histogram with `bins` bins within a bound, against which all values of this one are negligible."""
    counts, _, lowest, highest, before = histogram
    fresh, middle = np.zeros(bins, counts.dtype), bins // 2
    fresh[middle - 1], fresh[middle] = counts[: len(counts) // 2].sum(), counts[len(counts) // 2 :].sum()
    return fresh, np.linspace(-bound, bound, bins + 1), lowest, highest, np.array(bound, np.asarray(before).dtype)


def _coarser(histogram: tuple[Any, ...], most: int) -> tuple[Any, ...]:
    """A histogram with at most `most` bins, still symmetric around zero: counts, edges, lowest, highest, bound."""
    counts, _, lowest, highest, bound = histogram
    joined = -(-len(counts) // most)
    missing = -len(counts) % (2 * joined) // 2
    wider = float(bound) * (1 + 2 * missing / len(counts))
    fewer = np.pad(counts, missing).reshape(-1, joined).sum(axis=1)
    edges = np.linspace(-wider, wider, len(fewer) + 1)
    return fewer, edges, lowest, highest, np.array(wider, dtype=np.asarray(bound).dtype)


def _thinned(tensor: Arrays) -> Arrays:
    """A tensor's extremes and enough of its values, evenly spread: counting all of them takes longer than the runs.

    The extremes stay exact, and count once more than they occur.
    """
    ((name, array),) = tensor.items()
    values = array.reshape(-1)
    step = values.size // _COUNTED
    if step < 2:
        return tensor
    # The step is odd, because layer sizes are even: a step that divides them would always take the same channels.
    few = values[:: step | 1]
    return {name: np.concatenate([few, [values.min(), values.max()]]).astype(values.dtype, copy=False)}


def ranges_file(folder: Path, method: str) -> Path:
    """The file to which `ranges` writes the ranges of a method."""
    return folder / f"{method}.json"


def _write_ranges(ranges_by_tensor: dict[str, Any], to: Path) -> Path:
    from onnxruntime.quantization import CalibrationMethod  # noqa: PLC0415
    from onnxruntime.quantization.calibrate import TensorData, TensorsData, save_tensors_data  # noqa: PLC0415

    data = {
        name: TensorData(lowest=np.array(pair[0], np.float32), highest=np.array(pair[1], np.float32))
        for name, pair in ranges_by_tensor.items()
    }
    save_tensors_data(TensorsData(CalibrationMethod.MinMax, data), to)
    return to


def _observe(prepared: Path, samples: Arrays, op_types: tuple[str, ...]) -> Iterator[Arrays]:
    """Yields each float tensor around the operators, for as many samples at a time as memory allows.

    If the tensors of one sample already exceed that memory, they are split into parts, and the samples run once per
    part.
    """
    observed = onnx.load(prepared, load_external_data=False)
    tensors = _floats_around(observed.graph, op_types)
    sizes = {name: onnx_models.sample_bytes(value) for name, value in tensors.items()}
    limit = onnx_models.observed_bytes(prepared)
    max_batch = max(1, min(_BATCH, limit // max(sum(sizes.values()), 1)))  # a run computes all, whatever the part
    for part in onnx_models.partition(sizes, limit):
        del observed.graph.output[:]
        observed.graph.output.extend(tensors[name] for name in part)
        running = onnx_models.observing_session(observed, prepared)
        most = 1 if onnx_models.takes_one_sample(running) else max_batch
        count, start, batch = len(next(iter(samples.values()))), 0, 1
        while start < count:
            sample_bytes = 0.0
            for name, array in onnx_models.iterate_outputs(
                running, part, {k: v[start : start + batch] for k, v in samples.items()}
            ):
                sample_bytes += array.nbytes / batch
                yield {name: array}
            start += batch
            batch = max(1, min(most, int(limit // max(sample_bytes, 1))))


def _floats_around(graph: onnx.GraphProto, op_types: tuple[str, ...]) -> dict[str, onnx.ValueInfoProto]:
    """The float, non-constant inputs and outputs of operators of these types."""
    constants = {tensor.name for tensor in graph.initializer}
    floats = {
        value.name: value
        for value in (*graph.value_info, *graph.output, *graph.input)
        if value.type.tensor_type.elem_type in (TensorProto.FLOAT, TensorProto.FLOAT16)
    }
    around = [name for node in graph.node if node.op_type in op_types for name in (*node.input, *node.output)]
    return {name: floats[name] for name in around if name in floats and name not in constants}


def quantize_static(prepared: Path, calibrated: Path, form: Scheme, to: Path, excluded: tuple[str, ...] = ()) -> Path:
    """Writes the Q/DQ form of a prepared model with calibrated ranges; `excluded` nodes stay in float.

    Raises:
        QuantizeFailed: ONNX Runtime can't quantize the model, or can't load the result.
    """
    from onnxruntime import quantization as q  # noqa: PLC0415

    weights = _clear_weights(to)
    with building("int8"), onnx_models.tight_heap():
        q.quantize_static(
            str(prepared),
            str(to),
            None,
            quant_format=q.QuantFormat.QDQ,
            op_types_to_quantize=list(form.op_types),
            activation_type=q.QuantType.QInt8 if form.symmetric else q.QuantType.QUInt8,
            weight_type=q.QuantType.QInt8,
            per_channel=form.per_channel,
            reduce_range=form.reduce_range,
            nodes_to_exclude=list(excluded),
            use_external_data_format=True,
            calibration_cache_path=calibrated,
            extra_options={
                "ActivationSymmetric": form.symmetric,
                "QuantizeBias": not form.symmetric,
                "MatMulConstBOnly": form.attentive,
            },
        )
        _inline_weights(to, weights)
        onnx_models.session(to)
    return to


def quantize_dynamic(prepared: Path, form: Scheme, to: Path, excluded: tuple[str, ...] = ()) -> Path:
    """Writes the model with INT8 weights and activations quantized at run time; `excluded` nodes stay in float.

    Raises:
        QuantizeFailed: ONNX Runtime can't quantize the model, or can't load the result.
    """
    from onnxruntime import quantization as q  # noqa: PLC0415

    weights = _clear_weights(to)
    with building("dynamic int8"), onnx_models.tight_heap(), _lean_shape_inference():
        q.quantize_dynamic(
            str(_without_gemm(prepared)),  # a path instead of the model saves two copies of it
            str(to),
            op_types_to_quantize=["MatMul", "Gemm", "LSTM", "Attention"],
            per_channel=form.per_channel,
            reduce_range=form.reduce_range,
            weight_type=q.QuantType.QInt8,
            nodes_to_exclude=[*excluded, *(f"{name}_MatMul" for name in excluded)],  # these nodes were Gemm before
            use_external_data_format=True,
        )
        _inline_weights(to, weights)
        onnx_models.session(to)
    return to


@contextlib.contextmanager
def _lean_shape_inference() -> Iterator[None]:
    """Replaces the dynamic quantizer's shape inference, so that it holds the model twice instead of three times.

    The quantizer has no parameter for that, so its function is patched.
    """
    from onnxruntime.quantization import onnx_quantizer  # noqa: PLC0415

    original = onnx_quantizer.save_and_reload_model_with_shape_infer
    onnx_quantizer.save_and_reload_model_with_shape_infer = _inferred
    try:
        yield
    finally:
        onnx_quantizer.save_and_reload_model_with_shape_infer = original


def _inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with inferred shapes. The argument loses its weights, since the quantizer drops it anyway."""
    from onnxruntime.quantization.quant_utils import load_model_with_shape_infer  # noqa: PLC0415

    with TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        onnx.save(model, file, save_as_external_data=True)
        return load_model_with_shape_infer(file)


def _without_gemm(prepared: Path) -> Path:
    """The graph with each Gemm replaced by MatMul and Add; the quantizer would hold old and new weights to do so.

    Inferred shapes are removed, because those of the transposed Gemm weights would be wrong.
    """
    from onnxruntime.quantization.onnx_model import ONNXModel  # noqa: PLC0415

    to = prepared.with_name("without-gemm.onnx")
    if not to.is_file():
        model = onnx.load(prepared)
        ONNXModel(model).replace_gemm_with_matmul()
        del model.graph.value_info[:]
        _save_externally(model, to, f"{to.name}.data")
        del model
        onnx_models.release_memory()
    return to


# --- half precision -------------------------------------------------------------------------------------------------


def to_half(model: Path, kind: Literal["fp16", "bf16"], to: Path) -> Path:
    """Writes the model in half precision with FP32 inputs and outputs; operators that need FP32 keep it.

    Raises:
        QuantizeFailed: the model can't be converted, or is larger than 1 GiB.
    """
    from onnxruntime.transformers.float16 import convert_float_to_float16  # noqa: PLC0415 - 0.2 s
    from onnxruntime.transformers.onnx_model import OnnxModel  # noqa: PLC0415

    if _large(model):
        raise QuantizeFailed(f"{kind} can't be built: the model is larger than 1 GiB", do=f"Leave {kind} out.")
    with building(kind), onnx_models.tight_heap():
        converted = convert_float_to_float16(str(model), keep_io_types=True)  # a path instead of the model saves a copy
        if kind == "bf16":
            original = onnx.load(model).graph.initializer
            _as_bfloat16(converted.graph, {tensor.name: numpy_helper.to_array(tensor) for tensor in original})
        wrapper = OnnxModel(converted)
        wrapper.topological_sort()  # the conversion appends its casts at the end
        _save_externally(wrapper.model, to, _WEIGHTS)
        del converted, wrapper
        _inline_weights(to, _WEIGHTS)
    return to


def _save_externally(model: onnx.ModelProto, to: Path, weights: str) -> None:
    """Saves a model tensor by tensor: serializing it whole would hold it in memory once more."""
    (to.parent / weights).unlink(missing_ok=True)
    onnx.save(model, to, save_as_external_data=True, location=weights)


def _clear_weights(to: Path) -> str:
    """The name of the quantizers' weights file. Removes one that a killed run left, since they append to it."""
    name = f"{to.name}.data"
    (to.parent / name).unlink(missing_ok=True)
    return name


def _inline_weights(model: Path, weights: str) -> None:
    """Moves external weights into the model file, if the file stays within protobuf's limit."""
    onnx_models.release_memory()
    if not _large(model):
        onnx.save(onnx.load(model), model)
        (model.parent / weights).unlink(missing_ok=True)


def _as_bfloat16(graph: onnx.GraphProto, weights: dict[str, Any]) -> None:
    """Turns FLOAT16 into BFLOAT16. Weights are rounded once, from their FP32 values."""
    fp16, bf16 = TensorProto.FLOAT16, TensorProto.BFLOAT16
    attributes = [attribute for node in graph.node for attribute in node.attribute]
    constants = [attribute.t for attribute in attributes if attribute.type == onnx.AttributeProto.TENSOR]
    for tensor in (*graph.initializer, *constants):
        if tensor.data_type == fp16:
            values = weights.get(tensor.name, numpy_helper.to_array(tensor)).astype(np.float32)
            tensor.CopyFrom(onnx.helper.make_tensor(tensor.name, bf16, tensor.dims, values.ravel().tolist()))
    for value in graph.value_info:
        if value.type.tensor_type.elem_type == fp16:
            value.type.tensor_type.elem_type = bf16
    for attribute in attributes:
        if attribute.name == "to" and attribute.i == fp16:
            attribute.i = bf16


# --- samples and sizes ----------------------------------------------------------------------------------------------


def complete(samples: Arrays) -> Arrays:
    """The samples without missing values, of which no range of a tensor can be told."""
    floats = [array for array in samples.values() if array.dtype.kind == "f"]
    missing = [np.isnan(array).reshape(len(array), -1).any(axis=1) for array in floats]
    if not any(each.any() for each in missing):
        return samples
    kept = ~np.logical_or.reduce(missing)
    return {name: array[kept] for name, array in samples.items()}


def pick(samples: Arrays, count: int) -> Arrays:
    """`count` samples spread evenly over the set, since the first ones may all be of one class."""
    at = picked(len(next(iter(samples.values()))), count)
    return {name: array[at] for name, array in samples.items()}


def picked(size: int, count: int) -> NDArray[np.int64]:
    """The rows of the samples that `pick` takes from a set of `size`."""
    return np.unique(np.linspace(0, size - 1, num=min(count, size)).astype(np.int64))


def first(samples: Arrays, count: int) -> Arrays:
    """The first `count` samples, or all if there are fewer."""
    return batch_of(samples, min(count, len(next(iter(samples.values())))))


def model_bytes(model: Path) -> int:
    """The size of a model file and its external data, which together are all files in the folder."""
    return sum(file.stat().st_size for file in model.parent.iterdir() if file.is_file())


def _large(model: Path) -> bool:
    return model_bytes(model) > onnx_models.INLINE_BYTES
