"""ONNX models on OpenVINO in this process, to score and time what its backend will serve.

A session has the methods of ONNX Runtime's session that scoring uses, so that both engines are run in the same way.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.base.errors import MissingTool, QuantizeFailed
from shiplift.runtime.base.patience import answering
from shiplift.runtime.records.precision import Precision

COMPILE_S = 120
_LEAVE_OUT = "Leave OpenVINO out with `engine: onnxruntime` on the target."
HINTS: dict[Precision, str] = {"fp32": "f32", "int8": "f32", "bf16": "bf16", "fp16": "f16"}
_CAPABILITIES: dict[Precision, str] = {"bf16": "BF16", "fp16": "FP16"}


@dataclass(frozen=True, kw_only=True)
class Port:
    """An input or output of a model; dimensions of any size are -1."""

    name: str
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OpenVinoSession:
    """A compiled model. It runs asynchronously, because OpenVINO's synchronous call loses errors."""

    compiled: Any
    outputs: tuple[str, ...]

    def get_inputs(self) -> list[Port]:
        """The inputs, with their shapes."""
        ports = [(port.get_any_name(), port.get_partial_shape()) for port in self.compiled.inputs]
        return [
            Port(name=name, shape=tuple(dim.get_length() if dim.is_static else -1 for dim in shape))
            for name, shape in ports
        ]

    def get_outputs(self) -> list[Port]:
        """The outputs, in the model's order."""
        return [Port(name=name) for name in self.outputs]

    def run(self, names: Sequence[str], feeds: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """The outputs of these names, for one batch."""
        request = self.request(feeds)
        with answering(len(next(iter(feeds.values())))):
            request.start_async()
            request.wait()
        return [np.array(request.get_tensor(name).data) for name in names]

    def request(self, feeds: dict[str, NDArray[Any]]) -> Any:
        """OpenVINO's own request for one batch, to be started as often as one likes."""
        import openvino  # noqa: PLC0415 - see `session`

        request = self.compiled.create_infer_request()
        for name, array in feeds.items():
            request.set_tensor(name, openvino.Tensor(np.ascontiguousarray(array)))
        return request


def session(path: Path, outputs: Sequence[str], precision: Precision, *, threads: int = 1) -> OpenVinoSession:
    """A session of an ONNX file that computes in `precision`. int8 is in the file; the others are hints.

    Raises:
        MissingTool: this environment has no OpenVINO.
        QuantizeFailed: OpenVINO can't run the model, or not in this precision on this processor.
    """
    try:
        import openvino  # noqa: PLC0415 - takes 0.2 s
    except ImportError as error:
        raise MissingTool(
            "this environment has no OpenVINO",
            do="`pip install 'shiplift[local]'`, or set `engine: onnxruntime` on the target.",
        ) from error
    core = openvino.Core()
    needed = _CAPABILITIES.get(precision)
    if needed and needed not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        raise QuantizeFailed(
            f"{precision} on OpenVINO needs a processor that computes in {precision}, which this one does not",
            do="Leave it out of the target's precisions.",
        )
    try:
        model = core.read_model(path)
    except RuntimeError as error:
        raise QuantizeFailed(f"OpenVINO can't read the model: {_reason(error)}", do=_LEAVE_OUT) from error
    _require_checked(model)
    settings = {
        "INFERENCE_PRECISION_HINT": HINTS[precision],
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": str(threads),
        "ENABLE_CPU_PINNING": False,
        "PERFORMANCE_HINT": "LATENCY",
    }
    return OpenVinoSession(compiled=_compiled(core, model, settings), outputs=tuple(outputs))


def _require_checked(model: Any) -> None:
    """Refuses a product with weights over a dimension that clients choose.

    OpenVINO does not check that the dimension fits the weights, and reads beyond the request's bytes if it is too
    short.
    """
    for node in model.get_ops():
        if node.get_type_name() != "MatMul":
            continue
        left, right = node.input(0).get_partial_shape(), node.input(1).get_partial_shape()
        if left.rank.is_dynamic or right.rank.is_dynamic:
            continue
        attributes = node.get_attributes()
        inner_left = left[len(left) - (2 if attributes["transpose_a"] and len(left) > 1 else 1)]
        inner_right = right[len(right) - (1 if attributes["transpose_b"] or len(right) == 1 else 2)]
        if inner_left.is_dynamic and inner_right.is_static:
            raise QuantizeFailed(
                f"OpenVINO does not check the size of the tensor that {node.get_friendly_name()!r} multiplies with "
                "weights, and that size is dynamic",
                do="Give that dimension of the model's input its only possible size.",
            )


def _compiled(core: Any, model: Any, settings: dict[str, Any]) -> Any:
    """Compiles in a thread, since it can take minutes and can't be interrupted; the sandbox ends what is left."""
    results: list[Any] = []

    def compile_model() -> None:
        try:
            results.append(core.compile_model(model, "CPU", settings))
        except RuntimeError as error:
            results.append(error)

    thread = threading.Thread(target=compile_model, daemon=True)
    thread.start()
    thread.join(COMPILE_S)
    if not results:
        raise QuantizeFailed(f"OpenVINO did not compile the model within {COMPILE_S} s", do=_LEAVE_OUT)
    if isinstance(results[0], RuntimeError):
        raise QuantizeFailed(f"OpenVINO can't compile the model: {_reason(results[0])}", do=_LEAVE_OUT)
    return results[0]


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:400]
