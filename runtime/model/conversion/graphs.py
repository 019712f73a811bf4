"""ONNX models whose weights are too large to be held twice, or to be one protobuf (2 GiB): the graph alone is loaded,

its weights are streamed into files beside where it will be written, and are referred to from there.
"""

import shutil
from pathlib import Path

import onnx
from onnx import TensorProto, external_data_helper

from shiplift.runtime.model.onnx_models import INLINE_BYTES


def load(file: Path, to: Path, *, ours: bool = False) -> onnx.ModelProto:
    """The model in a file, with its weights; or, where those are larger than `INLINE_BYTES`, with references to them.

    They then lie in the folder `to`, into which the model must be written: moved there where the file is `ours`.
    """
    model = onnx.load(file, load_external_data=False)
    outside = [tensor for tensor in external_data_helper._get_all_tensors(model) if _location(tensor)]
    sources = sorted({_location(tensor) for tensor in outside})
    if sum((file.parent / one).stat().st_size for one in sources) <= INLINE_BYTES:
        external_data_helper.load_external_data_for_model(model, str(file.parent))
        return model
    names = {source: f"weights-{at}.bin" for at, source in enumerate(sources)}
    for source, name in names.items():
        (shutil.move if ours else shutil.copyfile)(file.parent / source, to / name)
    for tensor in outside:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = names[entry.value]
    return model


def save(model: onnx.ModelProto, path: Path) -> None:
    """Writes a model; weights that it holds go into a file of their own where they are larger than `INLINE_BYTES`.

    Raises:
        onnx.checker.ValidationError: it is no valid model.
    """
    large = sum(len(tensor.raw_data) for tensor in model.graph.initializer) > INLINE_BYTES
    onnx.save(model, path, save_as_external_data=large, location="weights.bin" if large else None)
    onnx.checker.check_model(str(path))


def _location(tensor: TensorProto) -> str:
    if tensor.data_location != TensorProto.EXTERNAL:
        return ""
    return next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
