"""Hugging Face models that take images: classifiers, behind what their image processor does to an image.

MLflow loads the pipeline, so the answers are those of `mlflow.pyfunc`, which takes images as base64. The graph takes
pixels and gives probabilities; `image_front` decodes, resizes, crops and normalises.
"""

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx

from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.model.conversion import text_graphs
from shiplift.runtime.model.conversion.huggingface import loaded
from shiplift.runtime.model.conversion.images_made import made_images
from shiplift.runtime.model.conversion.loaders import TorchModule
from shiplift.runtime.model.conversion.original import Original
from shiplift.runtime.model.tensors import Arrays, batch_of, concatenate, dump_npz
from shiplift.runtime.model.text.image_front import PIXELS, SETTINGS, ImageFront
from shiplift.runtime.records.tensor import Signature, TensorSpec

_TOP = 5  # as many labels as a pipeline answers
_MAX_IMAGES = 8  # of an example: the pipeline answers each by itself


class HuggingFaceImages(Original):
    """An image classifier as MLflow loads it; `answer` is the module's, on pixels."""

    takes_text = True  # clients send what `write_text` says: here images

    def __init__(self, folder: Path, inputs: tuple[TensorSpec, ...], max_megapixels: int) -> None:
        self.name, self.max_pixels = inputs[0].name, max_megapixels * 1_000_000
        self.served = loaded(folder)
        raw = self.served.get_raw_model()
        self.model, self.processor = raw.model, raw.image_processor
        self.settings = self._settings()
        spec = TensorSpec(name=PIXELS, datatype="FP32", shape=(-1, 3, *self._size()))
        self.graph = TorchModule(text_graphs.classifier(self.model, PIXELS), (spec,), ("probabilities",))

    @cached_property
    def front(self) -> ImageFront:
        """What is around the graph, as it is written for serving."""
        with TemporaryDirectory() as folder:
            self.write_front(Path(folder))
            return ImageFront(Path(folder))

    def write_front(self, to: Path) -> None:
        """Writes `image.json`."""
        (to / SETTINGS).write_text(json.dumps(self.settings, sort_keys=True, indent=1))

    def _settings(self) -> dict[str, Any]:
        processor, labels = self.processor, self.model.config.id2label
        _check_processor(processor)
        return {
            "task": "image-classification",
            "inputs": [self.name],
            "labels": [str(labels[at]) for at in range(len(labels))],
            "top": min(_TOP, self.model.config.num_labels),
            "max_pixels": self.max_pixels,
            "resize": _resize(processor) if processor.do_resize else None,
            "filter": int(2 if processor.resample is None else processor.resample),  # 2: bilinear
            "crop": _pair(processor.crop_size) if processor.do_center_crop else None,
            "scale": float(processor.rescale_factor) if processor.do_rescale else None,
            "mean": _channels(processor.image_mean) if processor.do_normalize else None,
            "std": _channels(processor.image_std) if processor.do_normalize else None,
        }

    def _size(self) -> tuple[int, int]:
        size = self.settings["crop"] or self.settings["resize"]
        if not isinstance(size, list):
            raise ExportFailed(
                "the image processor neither crops nor resizes images to one size, so they can't be batched",
                do="Give it `size={'height': .., 'width': ..}`, or `do_center_crop=True` and a `crop_size`.",
            )
        return size[0], size[1]

    # --- the graph ---

    def tensors(self, requests: dict[str, Arrays]) -> dict[str, Arrays]:
        """The pixels of each set of images."""
        return {
            name: self.front.feeds(self.front.encode(self.front.read(self.front.samples(inputs))))
            for name, inputs in requests.items()
        }

    def answer(self, inputs: Arrays) -> Arrays:
        """The module's outputs."""
        return self.graph.answer(inputs)

    def to_onnx(self, example: Arrays, opset: int, path: Path) -> onnx.ModelProto:
        """Through torch's exporter, with a dynamic batch."""
        return self.graph.to_onnx(batch_of(example, 2), opset, path)

    # --- what clients see ---

    def write_text(self, example: Arrays, to: Path, exported: Signature) -> Signature:
        """Writes the front, and images with what `mlflow.pyfunc` answers to each."""
        (to / "text").mkdir(exist_ok=True)
        self.write_front(to / "text")
        images = list(dict.fromkeys([*self.front.samples(example)[:_MAX_IMAGES], *made_images()]))
        answers = self.expected(images)
        asked = {f"input/{self.name}": np.array(images, dtype=object).reshape(-1, 1)}
        (to / "texts.npz").write_bytes(dump_npz(asked | {f"output/{key}": array for key, array in answers.items()}))
        top = self.settings["top"]
        return Signature(
            inputs=(TensorSpec(name=self.name, datatype="BYTES", shape=(-1, 1)),),
            outputs=(
                TensorSpec(name="label", datatype="BYTES", shape=(-1, top)),
                TensorSpec(name="score", datatype="FP32", shape=(-1, top)),
            ),
        )

    def expected(self, images: Sequence[str]) -> Arrays:
        """What `mlflow.pyfunc` answers to each image, under the names that clients see."""
        return concatenate([self._expected(image) for image in images])

    def _expected(self, image: str) -> Arrays:
        (row,) = self.served.predict([image]).to_numpy()
        return {
            "label": np.array([[entry["label"] for entry in row]], dtype=object),
            "score": np.array([[entry["score"] for entry in row]], np.float32),
        }


def _check_processor(processor: Any) -> None:
    """Whether the processor does what `image_front` does: no more than what most of them share."""
    from transformers.image_processing_backends import PilBackend, TorchvisionBackend  # noqa: PLC0415 - needs an extra

    # Where torchvision is installed, MLflow loads processors on it; how far it is from Pillow is for parity to say.
    shared = TorchvisionBackend if isinstance(processor, TorchvisionBackend) else PilBackend
    methods = ("preprocess", "_preprocess", "resize", "center_crop", "rescale", "normalize")
    own = [name for name in methods if getattr(type(processor), name, None) is not getattr(shared, name)]
    own += ["pad"] if getattr(processor, "do_pad", None) else []
    if own:
        raise ExportFailed(
            f"the image processor {type(processor).__name__} has its own `{own[0]}`, which is not served",
            do="Export the model itself as pt2 or ONNX, and log that: clients then send pixels.",
        )


def _resize(processor: Any) -> list[int] | int:
    size = processor.size
    if size.get("shortest_edge") and not size.get("longest_edge"):
        return int(size["shortest_edge"])
    return _pair(size)


def _pair(size: Any) -> list[int]:
    if not (size.get("height") and size.get("width")):
        raise ExportFailed(
            f"the image processor resizes to {dict(size)}, which is not served",
            do="Give it `size` with `height` and `width`, or with `shortest_edge`.",
        )
    return [int(size["height"]), int(size["width"])]


def _channels(values: Any) -> list[float]:
    return [float(value) for value in values] if isinstance(values, (list, tuple)) else [float(values)] * 3
