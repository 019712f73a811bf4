"""8-bit graphs by OpenVINO's NNCF: Q/DQ in ONNX's own format, which both CPU engines run.

NNCF places quantizers where the processor fuses operators, keeps the parts of a transformer in float that lose
accuracy, smooths activations into weights, and corrects biases ("Neural Network Compression Framework for fast model
inference", 2020). Whether its graph or ours is better differs by model, so the ladder builds both and keeps the faster
one within the accuracy budget.
"""

from pathlib import Path
from typing import Any

import onnx

from shiplift.runtime.base.errors import MissingTool, QuantizeFailed
from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.precision import quantization

SMALLEST_BYTES = 1 << 20  # for a smaller model, importing NNCF would be the longest part of the release
_LARGEST_BYTES = 1 << 30  # NNCF holds the graph in one protobuf, several times
_SAMPLES, _SAMPLES_ATTENTIVE = 16, 64  # transformers need more: with 64, their error fell to a quarter


def quantize(
    model: Path, samples: Arrays, to: Path, *, attentive: bool, narrow: bool, excluded: tuple[str, ...] = ()
) -> Path:
    """Writes the Q/DQ form of a float model.

    Args:
        samples: per input an array with the batch first. The first 16 samples are used (64 if `attentive`), one at a
        time.
        attentive: the model is a transformer.
        narrow: the target's 8-bit products saturate at 16 bits, so weights and activations get 7 bits.
        excluded: the names of nodes that stay in float.

    Raises:
        MissingTool: NNCF is not installed.
        QuantizeFailed: NNCF can't quantize the model, or ONNX Runtime can't load the result.
    """
    nncf = _library()
    if (size := quantization.model_bytes(model)) > _LARGEST_BYTES:
        raise QuantizeFailed(
            f"int8 by NNCF can't be built: the model has {size >> 20} MiB, the limit is {_LARGEST_BYTES >> 20}",
            do="Do nothing: ONNX Runtime's tools calibrate int8 too.",
        )
    with quantization.building("int8 by NNCF"), onnx_models.tight_heap():
        count = min(_SAMPLES_ATTENTIVE if attentive else _SAMPLES, len(next(iter(samples.values()))))
        each = [{name: array[at : at + 1] for name, array in samples.items()} for at in range(count)]
        quantized = nncf.quantize(
            onnx.load(model),
            nncf.Dataset(each),
            subset_size=count,
            model_type=nncf.ModelType.TRANSFORMER if attentive else None,
            ignored_scope=nncf.IgnoredScope(names=list(excluded), validate=False) if excluded else None,
            advanced_parameters=nncf.AdvancedQuantizationParameters(
                overflow_fix=nncf.OverflowFix.ENABLE if narrow else nncf.OverflowFix.DISABLE
            ),
        )
        onnx.save(quantized, to)
        del quantized
        onnx_models.session(to)
    return to


def _library() -> Any:
    try:
        import nncf  # noqa: PLC0415 - seconds
    except ImportError as error:
        raise MissingTool(
            "int8 by NNCF can't be built: NNCF is not installed", do="Run `pip install 'shiplift[local]'`."
        ) from error
    return nncf
