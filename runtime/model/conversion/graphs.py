"""ONNX models whose weights are too large to hold twice, or for one protobuf (2 GiB).

Only the graph is loaded; the weights are moved or copied as files next to where the model will be written.
"""

import shutil
from pathlib import Path

import onnx
from onnx import TensorProto, external_data_helper

from shiplift.runtime.model.onnx_models import INLINE_BYTES


def load(file: Path, to: Path, *, move: bool = False) -> onnx.ModelProto:
    """The model in a file with its weights or, if those exceed `INLINE_BYTES`, with references to them.

    The referenced weights are copied (or moved) into the folder `to`, into which the model must then be written.
    """
    model = onnx.load(file, load_external_data=False)
    outside = [tensor for tensor in external_data_helper._get_all_tensors(model) if _location(tensor)]
    sources = sorted({_location(tensor) for tensor in outside})
    if sum((file.parent / source).stat().st_size for source in sources) <= INLINE_BYTES:
        external_data_helper.load_external_data_for_model(model, str(file.parent))
        return model
    names = {source: f"weights-{index}.bin" for index, source in enumerate(sources)}
    for source, name in names.items():
        (shutil.move if move else shutil.copyfile)(file.parent / source, to / name)
    for tensor in outside:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = names[entry.value]
    return model


def save(model: onnx.ModelProto, path: Path) -> None:
    """Writes a model; the weights it holds go into a separate file if they exceed `INLINE_BYTES`.

    Raises:
        onnx.checker.ValidationError: the model is not valid.
    """
    large = sum(len(tensor.raw_data) for tensor in model.graph.initializer) > INLINE_BYTES
    onnx.save(model, path, save_as_external_data=large, location="weights.bin" if large else None)
    onnx.checker.check_model(str(path))


def _location(tensor: TensorProto) -> str:
    if tensor.data_location != TensorProto.EXTERNAL:
        return ""
    return next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
