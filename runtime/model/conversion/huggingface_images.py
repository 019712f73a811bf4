"""Hugging Face models that take images: classifiers and detectors, behind their image processor.

MLflow loads the pipeline, so the answers are those of `mlflow.pyfunc`, which takes images as base64, or the pipeline's
own. The graph takes pixels and gives probabilities; `image_front` decodes, resizes, crops and normalises.
"""

import base64
import io
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import numpy as np
import onnx

from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.guest.fronts.image_front import PIXELS, SETTINGS, ImageFront
from shiplift.runtime.model.conversion import text_graphs
from shiplift.runtime.model.conversion.huggingface import loaded, stay_offline
from shiplift.runtime.model.conversion.original import Original
from shiplift.runtime.model.conversion.torch_models import TorchModule
from shiplift.runtime.model.tensors import Arrays, batch_of, concatenate, dump_npz
from shiplift.runtime.model.text.images_made import made_images
from shiplift.runtime.model.text.tasks import DETECTION
from shiplift.runtime.records.tensor import Signature, TensorSpec

_TOP = 5  # a pipeline answers this many labels
_MAX_IMAGES = 8  # of an example: the pipeline answers them one by one
_THRESHOLD = 0.5  # a pipeline answers only scores above this
# By the image processor: whether it answers the best pairs of a box and a class, and how many (0: one per query).
_DETECTORS = {
    "DetrImageProcessor": (False, 0),
    "YolosImageProcessor": (False, 0),
    "ConditionalDetrImageProcessor": (True, 100),
    "DeformableDetrImageProcessor": (True, 100),
    "RTDetrImageProcessor": (True, 0),
}


class HuggingFaceImages(Original):
    """A model of images as MLflow loads it. `answer` is the module's, on pixels."""

    takes_text = True  # clients send the inputs that `write_text` declares: here images

    def __init__(self, folder: Path, task: str, inputs: tuple[TensorSpec, ...], max_megapixels: int) -> None:
        self.name = inputs[0].name
        self.task: _Task = _Detection(folder) if task == DETECTION else _Classification(folder)
        self.settings = {
            "task": task,
            "inputs": [self.name],
            "max_pixels": max_megapixels * 1_000_000,
            **_preprocessing(self.task.processor),
            **self.task.settings(),
        }
        spec = TensorSpec(name=PIXELS, datatype="FP32", shape=(-1, 3, *self._size()))
        self.graph = TorchModule(self.task.module(), (spec,), self.task.outputs)

    @cached_property
    def front(self) -> ImageFront:
        """The code around the graph, in the form written for serving."""
        with TemporaryDirectory() as folder:
            self.write_front(Path(folder))
            return ImageFront(Path(folder))

    def write_front(self, to: Path) -> None:
        """Writes `image.json`."""
        (to / SETTINGS).write_text(json.dumps(self.settings, sort_keys=True, indent=1))

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
        """Converts through torch's exporter, with a dynamic batch."""
        return self.graph.to_onnx(batch_of(example, 2), opset, path)

    # --- what clients see ---

    def write_text(self, example: Arrays, to: Path, exported: Signature) -> Signature:
        """Writes the front, and images with the answers of the model as MLflow loads it."""
        (to / "text").mkdir(exist_ok=True)
        self.write_front(to / "text")
        images = list(dict.fromkeys([*self.front.samples(example)[:_MAX_IMAGES], *made_images()]))
        answers = self.expected(images)
        asked = {f"input/{self.name}": np.array(images, dtype=object).reshape(-1, 1)}
        (to / "texts.npz").write_bytes(dump_npz(asked | {f"output/{key}": array for key, array in answers.items()}))
        specs = (TensorSpec(name=self.name, datatype="BYTES", shape=(-1, 1)),)
        return Signature(inputs=specs, outputs=self.task.seen())

    def expected(self, images: Sequence[str]) -> Arrays:
        """The original's answers to each image, under the names that clients see."""
        return concatenate([self.task.expected(image) for image in images])


class _Task(Protocol):
    """What differs between tasks: the graph's `outputs`, and what becomes of them."""

    processor: Any
    outputs: tuple[str, ...]

    def settings(self) -> dict[str, Any]:
        """The settings of the task for the front."""

    def module(self) -> Any:
        """The module from pixels to the outputs."""

    def seen(self) -> tuple[TensorSpec, ...]:
        """The outputs that clients see."""

    def expected(self, image: str) -> Arrays:
        """The original's answers to an image as base64."""


class _Classification:
    """The labels of an image, as `mlflow.pyfunc` answers them."""

    outputs: tuple[str, ...] = ("probabilities",)

    def __init__(self, folder: Path) -> None:
        self.served = loaded(folder)
        raw = self.served.get_raw_model()
        self.model, self.processor = raw.model, raw.image_processor
        self.top = min(_TOP, self.model.config.num_labels)
        _check_processor(self.processor)

    def settings(self) -> dict[str, Any]:
        return {"labels": _labels(self.model), "top": self.top}

    def module(self) -> Any:
        return text_graphs.classifier(self.model, PIXELS)

    def seen(self) -> tuple[TensorSpec, ...]:
        return (
            TensorSpec(name="label", datatype="BYTES", shape=(-1, self.top)),
            TensorSpec(name="score", datatype="FP32", shape=(-1, self.top)),
        )

    def expected(self, image: str) -> Arrays:
        (row,) = self.served.predict([image]).to_numpy()
        return {
            "label": np.array([[entry["label"] for entry in row]], dtype=object),
            "score": np.array([[entry["score"] for entry in row]], np.float32),
        }


class _Detection:
    """The objects in an image, as the pipeline answers them: `mlflow.pyfunc` does not support such models."""

    outputs: tuple[str, ...] = ("probabilities", "boxes")

    def __init__(self, folder: Path) -> None:
        stay_offline()
        import mlflow.transformers  # noqa: PLC0415 - needs an extra

        self.pipeline = mlflow.transformers.load_model(str(folder))
        self.model, self.processor = self.pipeline.model, self.pipeline.image_processor
        kind = type(self.processor).__name__.removesuffix("Pil").removesuffix("Fast")
        if kind not in _DETECTORS or self.pipeline.tokenizer is not None:
            raise ExportFailed(
                f"the image processor {kind} is not supported for detectors; known ones are {', '.join(_DETECTORS)}",
                do="Export the model itself as pt2 or ONNX, and log that: clients then send pixels.",
            )
        self.ranked, self.most = _DETECTORS[kind]

    def settings(self) -> dict[str, Any]:
        top = self.most or int(getattr(self.model.config, "num_queries", 0))
        return {"labels": _labels(self.model), "top": top, "ranked": self.ranked, "threshold": _THRESHOLD}

    def module(self) -> Any:
        return text_graphs.detector(self.model, PIXELS, several=self.ranked)

    def seen(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec(name="objects", datatype="BYTES", shape=(-1, 1)),)

    def expected(self, image: str) -> Arrays:
        from PIL import Image  # noqa: PLC0415

        with Image.open(io.BytesIO(base64.b64decode(image))) as opened:
            objects = self.pipeline(opened)
        return {"objects": np.array([[json.dumps(objects)]], dtype=object)}


def _labels(model: Any) -> list[str]:
    labels = model.config.id2label
    return [str(labels[at]) for at in range(len(labels))]


def _preprocessing(processor: Any) -> dict[str, Any]:
    """The processor's treatment of an image, in the front's terms."""
    return {
        "resize": _resize(processor) if processor.do_resize else None,
        "filter": int(2 if processor.resample is None else processor.resample),  # 2: bilinear
        "crop": _pair(processor.crop_size) if getattr(processor, "do_center_crop", None) else None,
        "scale": float(processor.rescale_factor) if processor.do_rescale else None,
        "mean": _channels(processor.image_mean) if processor.do_normalize else None,
        "std": _channels(processor.image_std) if processor.do_normalize else None,
    }


def _check_processor(processor: Any) -> None:
    """Checks that the processor does what `image_front` does: only what most of them share."""
    from transformers.image_processing_backends import PilBackend, TorchvisionBackend  # noqa: PLC0415 - needs an extra

    # If torchvision is installed, MLflow loads processors on it. Parity shows how far it is from Pillow.
    shared = TorchvisionBackend if isinstance(processor, TorchvisionBackend) else PilBackend
    methods = ("preprocess", "_preprocess", "resize", "center_crop", "rescale", "normalize")
    own = [name for name in methods if getattr(type(processor), name, None) is not getattr(shared, name)]
    own += ["pad"] if getattr(processor, "do_pad", None) else []
    if own:
        raise ExportFailed(
            f"the image processor {type(processor).__name__} has its own `{own[0]}`, which is not supported",
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
            f"the image processor resizes to {dict(size)}, which is not supported",
            do="Give it `size` with `height` and `width`, or with `shortest_edge`.",
        )
    return [int(size["height"]), int(size["width"])]


def _channels(values: Any) -> list[float]:
    return [float(value) for value in values] if isinstance(values, (list, tuple)) else [float(values)] * 3
