"""A model of pixels that is served with JPEG and PNG files: `export.preprocess` says how these become its input.

The right answer to a file is the original model's answer to the pixels that Pillow decodes from it.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.guest.fronts.pixel_front import SETTINGS, PixelFront
from shiplift.runtime.model.conversion.original import Original
from shiplift.runtime.model.tensors import Arrays, dump_npz
from shiplift.runtime.model.text.images_made import made_images
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.spec.images import Pixels

_TYPES = ("UINT8", "FP16", "FP32")


class EncodedImages(Original):
    """Another original behind the decoding of images. `answer` still takes pixels."""

    takes_text = True  # clients send the inputs that `write_text` declares: here images

    def __init__(
        self,
        behind: Original,
        inputs: tuple[TensorSpec, ...],
        pixels: Pixels,
        max_megapixels: int,
        finished: Callable[[Original, Arrays], Arrays],
    ) -> None:
        """`finished` turns an original's answers into the exported ones, with the spec's post-processing."""
        self.behind, self.finished = behind, finished
        self.notes, self.batch = behind.notes, behind.batch
        self.settings = _settings(pixels, inputs) | {"max_megapixels": max_megapixels}

    def tensors(self, requests: dict[str, Arrays]) -> dict[str, Arrays]:
        """The graph's inputs for these sets of requests, which already are pixels."""
        return self.behind.tensors(requests)

    def answer(self, inputs: Arrays) -> Arrays:
        """The outputs on pixels."""
        return self.behind.answer(inputs)

    def to_onnx(self, example: Arrays, opset: int, path: Path) -> onnx.ModelProto:
        """The model of pixels as ONNX."""
        return self.behind.to_onnx(example, opset, path)

    def write_text(self, example: Arrays, to: Path, exported: Signature) -> Signature:
        """Writes the settings, and images with the original's answers to their pixels."""
        (to / "text").mkdir(exist_ok=True)
        (to / "text" / SETTINGS).write_text(json.dumps(self.settings, sort_keys=True, indent=1))
        images, name = made_images(), self.settings["inputs"][0]
        front = PixelFront(to / "text")
        feeds = front.feeds(front.encode(front.read(images)))
        answers = list(self.finished(self.behind, feeds).values())
        asked = {f"input/{name}": np.array(images, dtype=object).reshape(-1, 1)}
        right = {f"output/{spec.name}": array for spec, array in zip(exported.outputs, answers, strict=True)}
        (to / "texts.npz").write_bytes(dump_npz(asked | right))
        return Signature(inputs=(TensorSpec(name=name, datatype="BYTES", shape=(-1, 1)),), outputs=exported.outputs)


def _settings(pixels: Pixels, inputs: tuple[TensorSpec, ...]) -> dict[str, Any]:
    """The settings of `pixel_front`: those of the spec, and the layout and datatype of the model's input.

    Raises:
        ExportFailed: the model's input is not a batch of images, or not of those that the spec makes.
    """
    if len(inputs) != 1 or len(inputs[0].shape) != 4 or inputs[0].datatype not in _TYPES:
        listed = ", ".join(f"{spec.name} {spec.datatype}{list(spec.shape)}" for spec in inputs)
        raise ExportFailed(
            f"`export.preprocess` is for a model with one input of four dimensions, this one takes {listed}",
            do="Leave it out of the spec, `export: {preprocess: null}`, or "
            "log the part of the model that takes pixels.",
        )
    spec, (height, width) = inputs[0], pixels.size
    shapes = {"NCHW": (pixels.channels, height, width), "NHWC": (height, width, pixels.channels)}
    layouts = [name for name, shape in shapes.items() if _fits(spec.shape[1:], shape)]
    if not layouts:
        raise ExportFailed(
            f"`export.preprocess` makes images of {height} x {width} pixels with {pixels.channels} channels, and the "
            f"model's input {spec.name!r} has the shape {list(spec.shape)}",
            do="Make images of its size, `export: {preprocess: {resize: [HEIGHT, WIDTH]}}`, and `colors` of its "
            "channels.",
        )
    if spec.datatype == "UINT8" and pixels.normalizes:
        raise ExportFailed(
            f"the model's input {spec.name!r} is UINT8, and `export.preprocess` changes the numbers of pixels",
            do="Leave `scale`, `mean` and `std` out of `export.preprocess`.",
        )
    return pixels.model_dump(mode="json") | {
        "inputs": [spec.name],
        "pixels": spec.name,
        "layout": layouts[0],
        "datatype": spec.datatype,
    }


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    return all(size in (-1, want) for size, want in zip(shape, wanted, strict=True))
