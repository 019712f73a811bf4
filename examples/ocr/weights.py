"""PP-OCRv4's three networks from the wheel of rapidocr, as graphs that take pixels as they are in an image.

Each gets a uint8 input (batch, height, width, 3), so that a page travels in a quarter of the bytes, and the recogniser
gives the likeliest character of each position instead of 6,625 probabilities.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

# With no dependencies of theirs: what they need is here already, and rapidocr wants an OpenCV with windows.
WHEELS = ("rapidocr-onnxruntime==1.4.4", "opencv-python-headless==4.12.0.88", "pyclipper==1.4.0", "shapely==2.1.2")
FILES = {
    "ocr-detect": "ch_PP-OCRv4_det_infer.onnx",
    "ocr-direction": "ch_ppocr_mobile_v2.0_cls_infer.onnx",
    "ocr-recognise": "ch_PP-OCRv4_rec_infer.onnx",
}
OUTPUTS = {"ocr-detect": "heat", "ocr-direction": "ways"}


def installed(folder: Path) -> Path:
    """The folder with the wheels, installed there on the first call, beside this environment."""
    if not (folder / "rapidocr_onnxruntime").is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*command, "--target", str(folder), *WHEELS], check=True)
    return folder


def graph(wheels: Path, name: str) -> Any:
    """The network of a model, from pixels to what the pipeline's steps take."""
    model = onnx.load(str(wheels / "rapidocr_onnxruntime" / "models" / FILES[name]))
    _take_pixels(model.graph)
    if name == "ocr-recognise":
        _give_characters(model.graph)
    else:
        _rename_output(model.graph, OUTPUTS[name])
    del model.graph.value_info[:]
    onnx.checker.check_model(model)
    return model


def characters(wheels: Path) -> list[str]:
    """What the recogniser's numbers from 1 on stand for."""
    model = onnx.load(str(wheels / "rapidocr_onnxruntime" / "models" / FILES["ocr-recognise"]))
    (text,) = [each.value for each in model.metadata_props if each.key == "character"]
    return str(text).splitlines()


def _take_pixels(network: Any) -> None:
    """Puts `(pixels / 127.5 - 1)`, channels first, before the network."""
    (old,) = network.input
    scale = numpy_helper.from_array(np.float32(1 / 127.5), "pixel_scale")
    offset = numpy_helper.from_array(np.float32(1), "pixel_offset")
    network.initializer.extend([scale, offset])
    nodes = [
        helper.make_node("Cast", ["image"], ["pixels"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["pixels", "pixel_scale"], ["pixels_scaled"]),
        helper.make_node("Sub", ["pixels_scaled", "pixel_offset"], ["pixels_centred"]),
        helper.make_node("Transpose", ["pixels_centred"], [old.name], perm=[0, 3, 1, 2]),
    ]
    for at, node in enumerate(nodes):
        network.node.insert(at, node)
    del network.input[:]
    network.input.append(helper.make_tensor_value_info("image", TensorProto.UINT8, ["N", "H", "W", 3]))


def _give_characters(network: Any) -> None:
    """The number of each position's likeliest character, and how likely it is."""
    (old,) = network.output
    network.node.append(helper.make_node("ArgMax", [old.name], ["ids"], axis=2, keepdims=0))
    network.node.append(helper.make_node("ReduceMax", [old.name], ["sure"], axes=[2], keepdims=0))
    del network.output[:]
    network.output.append(helper.make_tensor_value_info("ids", TensorProto.INT64, ["N", "T"]))
    network.output.append(helper.make_tensor_value_info("sure", TensorProto.FLOAT, ["N", "T"]))


def _rename_output(network: Any, name: str) -> None:
    (old,) = network.output
    for node in network.node:
        node.output[:] = [name if each == old.name else each for each in node.output]
        node.input[:] = [name if each == old.name else each for each in node.input]
    old.name = name
