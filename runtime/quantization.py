"""Static INT8 with ONNX Runtime: Q/DQ nodes calibrated on real samples, with the settings this processor needs.

Settings follow ONNX Runtime's quantization guide: on x86 activations are unsigned and weights signed 8 bit; without
VNNI the products saturate in 16 bits, so weights keep 7 bits (`reduce_range`).
"""

import logging
from pathlib import Path
from typing import Any

import numpy as np

from runtime import onnx_models
from runtime.errors import QuantizeFailed
from runtime.spec import Quantization
from runtime.tensors import Arrays

_BATCH = 32


def quantize_int8(model: Path, samples: Arrays, how: Quantization, to: Path) -> Path:
    """Writes the INT8 form of `model` to `to` and gives that path.

    Raises:
        QuantizeFailed: ONNX Runtime can't quantize the model, or the result does not load.
    """
    from onnxruntime import quantization as q  # noqa: PLC0415 - 0.2 s

    prepared = to.with_name("prepared.onnx")
    logging.getLogger().setLevel(logging.ERROR)
    methods = {
        "minmax": q.CalibrationMethod.MinMax,
        "entropy": q.CalibrationMethod.Entropy,
        "percentile": q.CalibrationMethod.Percentile,
    }
    try:
        _prepare(model, prepared)
        q.quantize_static(
            str(prepared),
            str(to),
            _reader(samples, q.CalibrationDataReader),
            quant_format=q.QuantFormat.QDQ,
            activation_type=q.QuantType.QUInt8,
            weight_type=q.QuantType.QInt8,
            per_channel=how.per_channel,
            reduce_range=not onnx_models.has_vnni(),
            calibrate_method=methods[how.method],
        )
        onnx_models.session(to)
    except Exception as error:
        raise QuantizeFailed(
            f"int8 can't be built: {type(error).__name__}: {' '.join(str(error).split())[:300]}",
            do="Leave int8 out of the target's precisions.",
        ) from error
    finally:
        prepared.unlink(missing_ok=True)
    return to


def _prepare(model: Path, to: Path) -> None:
    """Shape inference and optimisation; symbolic inference is skipped where a graph defeats it."""
    from onnxruntime.quantization.shape_inference import quant_pre_process  # noqa: PLC0415

    try:
        quant_pre_process(str(model), str(to))
    except Exception:
        quant_pre_process(str(model), str(to), skip_symbolic_shape=True)


def _reader(samples: Arrays, base: type[Any]) -> Any:
    """Batches of one size, the last one filled up from the start: entropy and percentile stack what they collect."""
    size = len(next(iter(samples.values())))
    step = min(_BATCH, size)
    batches = [np.arange(at, at + step) % size for at in range(0, size, step)]
    pieces = iter([{name: array[batch] for name, array in samples.items()} for batch in batches])

    class Reader(base):  # type: ignore[misc]
        """Calibration samples, a batch at a time."""

        def get_next(self) -> Arrays | None:
            """The next batch, None after the last."""
            return next(pieces, None)

    return Reader()


def pick(samples: Arrays, count: int) -> Arrays:
    """`count` samples spread evenly over the set: the first ones may all be of one class."""
    size = len(next(iter(samples.values())))
    at = np.unique(np.linspace(0, size - 1, num=min(count, size)).astype(np.int64))
    return {name: array[at] for name, array in samples.items()}
