"""8-bit and half precision with ONNX Runtime: calibrated Q/DQ graphs, dynamic INT8, FP16 and BF16 with kept I/O types.

Calibration runs the model once: the ranges of every method come from the same streamed histograms, so that another
method, or another layer left in float, costs a graph rewrite and no inference. Settings follow ONNX Runtime's
quantization guide: on x86 activations are unsigned and weights signed 8 bit; without VNNI the products saturate in 16
bits, so weights keep 7 bits (`reduce_range`); TensorRT takes symmetric Q/DQ alone. A prepared model keeps its weights
in a file beside it, so that graphs are read and rewritten without them, and sessions map them instead of copying.
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
from onnx import TensorProto, numpy_helper

from shiplift.runtime.base.errors import QuantizeFailed
from shiplift.runtime.host.processor import has_vnni
from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.tensors import Arrays, batch_of
from shiplift.runtime.spec.model import Method, Quantization
from shiplift.runtime.spec.target import Target

_BATCH = 32
_FINE_BINS, _COARSE_BINS = 2048, 128  # what ONNX Runtime takes for percentiles and for entropy
_WEIGHTS = "weights.bin"
LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_RECURRENT_OR_ATTENTIVE = {
    "Attention", "GRU", "LSTM", "LayerNormalization", "MultiHeadAttention", "RMSNormalization", "RNN",
    "SimplifiedLayerNormalization", "SkipLayerNormalization",
}  # fmt: skip
# Around convolutions everything that has an 8-bit kernel stays in 8 bits; elsewhere the products alone are worth it.
_CONVOLUTIONAL = (
    *LAYERS, "Add", "AveragePool", "Clip", "Concat", "Flatten", "GlobalAveragePool", "LeakyRelu", "MaxPool", "Mul",
    "Pad", "Relu", "Reshape", "Resize", "Sigmoid", "Split", "Squeeze", "Transpose", "Unsqueeze",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """How an 8-bit graph has to be written for a target, given what kind of graph it is."""

    op_types: tuple[str, ...]
    constant_weights: bool
    symmetric: bool
    reduce_range: bool
    per_channel: bool


def scheme(model: Path, target: Target, how: Quantization) -> Scheme:
    """The scheme for a model file on a target."""
    attentive = has_attention(model)
    vnni = target.accelerator == "cpu-vnni" or (target.accelerator == "cpu" and has_vnni())
    return Scheme(
        op_types=LAYERS if attentive else _CONVOLUTIONAL,
        constant_weights=attentive,
        symmetric=target.gpu,
        reduce_range=target.accelerator in ("cpu", "cpu-avx2") and not vnni,
        per_channel=how.per_channel,
    )


def has_attention(model: Path) -> bool:
    """Whether it is a transformer or recurrent: their activations vary so much that dynamic INT8 is worth a try."""
    graph = onnx.load(model, load_external_data=False).graph
    return any(node.op_type in _RECURRENT_OR_ATTENTIVE for node in graph.node)


def layers(prepared: Path) -> tuple[str, ...]:
    """The names of the nodes with weights, in the graph's order: what can be left in float."""
    graph = onnx.load(prepared, load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    return tuple(node.name for node in graph.node if node.op_type in LAYERS and set(node.input[1:2]) & weights)


def import_tools() -> None:
    """Imports what the functions here would import as they are called."""
    import onnxruntime.quantization  # noqa: PLC0415 - 0.2 s each
    import onnxruntime.transformers.float16  # noqa: F401, PLC0415


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """ONNX Runtime's tools raise anything, print as they go, and leave a heap full of holes behind."""
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
            f"{what} can't be built: {type(error).__name__}: {' '.join(str(error).split())[:300]}",
            do=f"Leave {what} out of the target's precisions.",
        ) from error
    finally:
        root.setLevel(before)
        onnx_models.release_memory()


# --- INT8 -----------------------------------------------------------------------------------------------------------


def prepare(model: Path, to: Path) -> Path:
    """Writes the model with shapes inferred, folded and optimised, and with a name for every node.

    Raises:
        QuantizeFailed: ONNX Runtime can't read it.
    """
    with _explained("int8"):
        _optimise(model, to)
        made = onnx.load(to, load_external_data=False)
        if _untyped(made.graph):
            _infer_symbolically(model, to)
            made = onnx.load(to, load_external_data=False)
        for at, node in enumerate(made.graph.node):
            node.name = node.name or f"{node.op_type}_{at}"
        onnx.save(made, to)
    return to


def _optimise(model: Path, to: Path) -> None:
    """What `quant_pre_process` does first, without holding the model thrice: the optimised graph's weights go straight
    into a file of their own, and shapes are inferred without them."""
    import onnxruntime as ort  # noqa: PLC0415 - loaded by now

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
    """Knows more operators; imports all of torch, 3 s."""
    from onnxruntime.quantization.shape_inference import quant_pre_process  # noqa: PLC0415

    (to.parent / _WEIGHTS).unlink(missing_ok=True)
    quant_pre_process(
        str(model), str(to), save_as_external_data=True, all_tensors_to_one_file=True, external_data_location=_WEIGHTS
    )


def _untyped(graph: onnx.GraphProto) -> bool:
    """Whether the type of a layer's output is not known: nothing could be calibrated there."""
    typed = {value.name for value in (*graph.value_info, *graph.output)}
    return any(node.op_type in LAYERS and node.output[0] not in typed for node in graph.node)


def ranges(
    prepared: Path, samples: Arrays, op_types: tuple[str, ...], how: Quantization, folder: Path
) -> dict[Method, Path]:
    """Runs the samples once and writes each method's ranges, by method.

    Raises:
        QuantizeFailed: the model does not run on them, or gives no ranges.
    """
    from onnxruntime.quantization.calibrate import HistogramCollector  # noqa: PLC0415 - 0.2 s

    with _explained("int8"):
        fine = HistogramCollector("percentile", False, _FINE_BINS, _COARSE_BINS, how.percentile, "same")
        coarse = HistogramCollector("entropy", False, _COARSE_BINS, _COARSE_BINS, how.percentile, "same")
        for seen in _observe(prepared, samples, op_types):
            fine.collect_value(seen)
            if "entropy" in how.methods:
                coarse.collect_value(seen)
        found = {
            "minmax": lambda: {name: (entry[2], entry[3]) for name, entry in fine.histogram_dict.items()},
            "percentile": fine.compute_percentile,
            "entropy": coarse.compute_entropy,
        }
        return {method: _write_ranges(found[method](), folder / f"{method}.json") for method in how.methods}


def _write_ranges(found: dict[str, Any], to: Path) -> Path:
    from onnxruntime.quantization import CalibrationMethod  # noqa: PLC0415
    from onnxruntime.quantization.calibrate import TensorData, TensorsData, save_tensors_data  # noqa: PLC0415

    data = {
        name: TensorData(lowest=np.array(pair[0], np.float32), highest=np.array(pair[1], np.float32))
        for name, pair in found.items()
    }
    save_tensors_data(TensorsData(CalibrationMethod.MinMax, data), to)
    return to


def _observe(prepared: Path, samples: Arrays, op_types: tuple[str, ...]) -> Iterator[Arrays]:
    """Every float tensor around the given operators, one by one, for a few samples at a time: what memory may hold.

    Where one sample's tensors are more than that, the samples are run once for each part of them.
    """
    made = onnx.load(prepared, load_external_data=False)
    wanted = _floats_around(made.graph, op_types)
    sizes = {name: onnx_models.sample_bytes(value) for name, value in wanted.items()}
    most = onnx_models.observed_bytes(prepared)
    at_once = max(1, min(_BATCH, most // max(sum(sizes.values()), 1)))  # the others are computed, too
    for part in onnx_models.partition(sizes, most):
        del made.graph.output[:]
        made.graph.output.extend(wanted[name] for name in part)
        running = onnx_models.observing_session(made, prepared)
        size, at, step = len(next(iter(samples.values()))), 0, 1
        while at < size:
            held = 0.0
            for name, array in onnx_models.iterate_outputs(
                running, part, {k: v[at : at + step] for k, v in samples.items()}
            ):
                held += array.nbytes / step
                yield {name: array}
            at += step
            step = max(1, min(at_once, int(most // max(held, 1))))


def _floats_around(graph: onnx.GraphProto, op_types: tuple[str, ...]) -> dict[str, onnx.ValueInfoProto]:
    """What operators of these types take and give, where it is known to be floats and is no constant."""
    constants = {tensor.name for tensor in graph.initializer}
    floats = {
        value.name: value
        for value in (*graph.value_info, *graph.output, *graph.input)
        if value.type.tensor_type.elem_type in (TensorProto.FLOAT, TensorProto.FLOAT16)
    }
    around = [name for node in graph.node if node.op_type in op_types for name in (*node.input, *node.output)]
    return {name: floats[name] for name in around if name in floats and name not in constants}


def quantize_static(prepared: Path, given: Path, how: Scheme, to: Path, excluded: tuple[str, ...] = ()) -> Path:
    """Writes the Q/DQ form of a prepared model under calibrated ranges; `excluded` nodes stay in float.

    Raises:
        QuantizeFailed: ONNX Runtime can't quantize the model, or does not load the result.
    """
    from onnxruntime import quantization as q  # noqa: PLC0415

    weights = _beside(to)
    with _explained("int8"), onnx_models.tight_heap():
        q.quantize_static(
            str(prepared),
            str(to),
            None,
            quant_format=q.QuantFormat.QDQ,
            op_types_to_quantize=list(how.op_types),
            activation_type=q.QuantType.QInt8 if how.symmetric else q.QuantType.QUInt8,
            weight_type=q.QuantType.QInt8,
            per_channel=how.per_channel,
            reduce_range=how.reduce_range,
            nodes_to_exclude=list(excluded),
            use_external_data_format=True,
            calibration_cache_path=given,
            extra_options={
                "ActivationSymmetric": how.symmetric,
                "QuantizeBias": not how.symmetric,
                "MatMulConstBOnly": how.constant_weights,
            },
        )
        _as_one_file(to, weights)
        onnx_models.session(to)
    return to


def quantize_dynamic(prepared: Path, how: Scheme, to: Path, excluded: tuple[str, ...] = ()) -> Path:
    """Writes the form whose weights are INT8 and whose activations are quantized as they come.

    `excluded` nodes stay in float.

    Raises:
        QuantizeFailed: ONNX Runtime can't quantize the model, or does not load the result.
    """
    from onnxruntime import quantization as q  # noqa: PLC0415

    weights = _beside(to)
    with _explained("dynamic int8"), onnx_models.tight_heap(), _inferred_by_us():
        q.quantize_dynamic(
            str(_without_gemm(prepared)),  # by path it holds two copies the less
            str(to),
            op_types_to_quantize=["MatMul", "Gemm", "LSTM", "Attention"],
            per_channel=how.per_channel,
            reduce_range=how.reduce_range,
            weight_type=q.QuantType.QInt8,
            nodes_to_exclude=[*excluded, *(f"{name}_MatMul" for name in excluded)],  # what has become of a Gemm
            use_external_data_format=True,
        )
        _as_one_file(to, weights)
        onnx_models.session(to)
    return to


@contextlib.contextmanager
def _inferred_by_us() -> Iterator[None]:
    """ONNX Runtime's dynamic quantizer holds the model thrice to know its shapes; while this lasts, twice.

    It has no parameter for that, and is given the function below in place of its own.
    """
    from onnxruntime.quantization import onnx_quantizer  # noqa: PLC0415

    theirs = onnx_quantizer.save_and_reload_model_with_shape_infer
    onnx_quantizer.save_and_reload_model_with_shape_infer = _inferred
    try:
        yield
    finally:
        onnx_quantizer.save_and_reload_model_with_shape_infer = theirs


def _inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its shapes; the one that was given, which the quantizer drops, is left without weights."""
    from onnxruntime.quantization.quant_utils import load_model_with_shape_infer  # noqa: PLC0415

    with TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        onnx.save(model, file, save_as_external_data=True)
        return load_model_with_shape_infer(file)


def _without_gemm(prepared: Path) -> Path:
    """The graph with MatMul and Add for each Gemm, which the quantizer would do itself, holding old and new weights.

    It has no shapes of tensors: Gemm's weights are turned round, and would be taken for the old ones.
    """
    from onnxruntime.quantization.onnx_model import ONNXModel  # noqa: PLC0415

    to = prepared.with_name("without-gemm.onnx")
    if not to.is_file():
        made = onnx.load(prepared)
        ONNXModel(made).replace_gemm_with_matmul()
        del made.graph.value_info[:]
        _save_in_parts(made, to, f"{to.name}.data")
        del made
        onnx_models.release_memory()
    return to


# --- half precision -------------------------------------------------------------------------------------------------


def to_half(model: Path, kind: Literal["fp16", "bf16"], to: Path) -> Path:
    """Writes the model in half precision with FP32 inputs and outputs; operators that need FP32 keep it.

    Raises:
        QuantizeFailed: it can't be converted, or is larger than the 2 GiB that the conversion takes.
    """
    from onnxruntime.transformers.float16 import convert_float_to_float16  # noqa: PLC0415 - 0.2 s
    from onnxruntime.transformers.onnx_model import OnnxModel  # noqa: PLC0415

    if _large(model):
        raise QuantizeFailed(f"{kind} can't be built: the model is larger than 1 GiB", do="Leave it out.")
    with _explained(kind), onnx_models.tight_heap():
        made = convert_float_to_float16(str(model), keep_io_types=True)  # by path it holds one copy the less
        if kind == "bf16":
            original = onnx.load(model).graph.initializer
            _as_bfloat16(made.graph, {tensor.name: numpy_helper.to_array(tensor) for tensor in original})
        sorted_ = OnnxModel(made)
        sorted_.topological_sort()  # the conversion leaves its casts at the end
        _save_in_parts(sorted_.model, to, _WEIGHTS)
        del made, sorted_
        _as_one_file(to, _WEIGHTS)
    return to


def _save_in_parts(model: onnx.ModelProto, to: Path, weights: str) -> None:
    """Tensor by tensor: a converted model still holds what it was made from, and its text would come on top."""
    (to.parent / weights).unlink(missing_ok=True)
    onnx.save(model, to, save_as_external_data=True, location=weights)


def _beside(to: Path) -> str:
    """The name that ONNX Runtime's quantizers give to the file of weights; what a killed run left would be added to."""
    name = f"{to.name}.data"
    (to.parent / name).unlink(missing_ok=True)
    return name


def _as_one_file(model: Path, weights: str) -> None:
    """Takes the weights beside a model into its file, where that stays within what protobuf reads."""
    onnx_models.release_memory()
    if not _large(model):
        onnx.save(onnx.load(model), model)
        (model.parent / weights).unlink(missing_ok=True)


def _as_bfloat16(graph: onnx.GraphProto, weights: dict[str, Any]) -> None:
    """The same graph with BFLOAT16 where it has FLOAT16; weights are rounded from their FP32 values, not twice."""
    half, brain = TensorProto.FLOAT16, TensorProto.BFLOAT16
    attributes = [attribute for node in graph.node for attribute in node.attribute]
    constants = [one.t for one in attributes if one.type == onnx.AttributeProto.TENSOR]
    for tensor in (*graph.initializer, *constants):
        if tensor.data_type == half:
            values = weights.get(tensor.name, numpy_helper.to_array(tensor)).astype(np.float32)
            tensor.CopyFrom(onnx.helper.make_tensor(tensor.name, brain, tensor.dims, values.ravel().tolist()))
    for value in graph.value_info:
        if value.type.tensor_type.elem_type == half:
            value.type.tensor_type.elem_type = brain
    for attribute in attributes:
        if attribute.name == "to" and attribute.i == half:
            attribute.i = brain


# --- samples and sizes ----------------------------------------------------------------------------------------------


def pick(samples: Arrays, count: int) -> Arrays:
    """`count` samples spread evenly over the set: the first ones may all be of one class."""
    size = len(next(iter(samples.values())))
    at = np.unique(np.linspace(0, size - 1, num=min(count, size)).astype(np.int64))
    return {name: array[at] for name, array in samples.items()}


def first(samples: Arrays, count: int) -> Arrays:
    """At most `count` samples, from the start."""
    return batch_of(samples, min(count, len(next(iter(samples.values())))))


def weight_of(model: Path) -> int:
    """The bytes of a model file and of what lies beside it: its external data."""
    return sum(file.stat().st_size for file in model.parent.iterdir() if file.is_file())


def _large(model: Path) -> bool:
    return weight_of(model) > onnx_models.INLINE_BYTES
