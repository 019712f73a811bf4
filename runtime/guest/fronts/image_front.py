"""Images in, labels or objects out, around a graph that takes pixels: decoded, resized, cropped, normalised by Pillow.

The same code checks a model and serves it. Only JPEG and PNG are decoded, and nothing is before its header says that it
is small enough.

Process: Triton's Python backend or a process beside it, as `front.py` beside `encoded.py`; Shiplift's sandbox.
Python: the server's
Packages: numpy, PIL
"""

import base64
import binascii
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

if __package__:
    from .encoded import FORMATS, MAGIC, BadImage, Metered, check_work, scans_of  # noqa: TID251 - in Shiplift
else:
    from encoded import FORMATS, MAGIC, BadImage, Metered, check_work, scans_of

SETTINGS = "image.json"
MAX_IMAGE_BYTES = 16 << 20
PIXELS = "pixel_values"
Arrays = dict[str, Any]
Item = bytes | str
_CORNERS = ("xmin", "ymin", "xmax", "ymax")
Image.MAX_IMAGE_PIXELS = None  # the limit here is lower, and its error has the sizes


class Picture(NamedTuple):
    """An image as it is resized and cropped, uint8 of shape (channels, height, width), and the size that it had."""

    pixels: Any
    width: int
    height: int


class ImageFront:
    """What is around a model's graph.

    `image.json` has: `task`; `inputs`, the name of the input; `labels` by class; `top`, how many are answered;
    `max_pixels` of an image; `resize`, the target's `[height, width]` or its shorter edge, and Pillow's number of its
    `filter`; `crop`, `[height, width]`, or null; `scale`, `mean` and `std`, or null. For object detection also
    `ranked`, whether the `top` best pairs of a box and a class are answered, instead of each box's best class; and the
    `threshold` above which scores are.
    """

    def __init__(self, folder: Path) -> None:
        self.settings: dict[str, Any] = json.loads((folder / SETTINGS).read_text())

    def samples(self, inputs: Mapping[str, Any]) -> list[Any]:
        """The images of arrays by input name."""
        return list(inputs[self.settings["inputs"][0]].reshape(-1))

    def as_files(self, samples: Sequence[Item]) -> list[bytes]:
        """The images' files, which may have come as base64.

        Raises:
            BadImage: one is not such a file.
        """
        return [_file(sample) for sample in samples]

    def read(self, samples: Sequence[Item]) -> list[Picture]:
        """The images as they are resized and cropped, each a JPEG or PNG file, or base64 of one.

        Raises:
            BadImage: one is not such a file, is damaged, or too large.
        """
        return [self._picture(_file(sample)) for sample in samples]

    def _picture(self, body: bytes) -> Picture:
        scans = scans_of(body)
        try:
            with Image.open(Metered(body), formats=FORMATS) as image:
                self._check(*image.size, scans)
                image.load()
                upright = ImageOps.exif_transpose(image).convert("RGB")
        except BadImage:
            raise
        except UnidentifiedImageError:
            raise BadImage("the image can't be decoded: its header is damaged") from None
        except Exception as error:  # Pillow's readers raise whatever a damaged file makes them
            raise BadImage(f"the image can't be decoded: {' '.join(str(error).split())[:200]}") from None
        pixels = np.moveaxis(np.asarray(self._cropped(self._resized(upright))), -1, 0)
        return Picture(pixels, *upright.size)

    def _check(self, width: int, height: int, scans: int) -> None:
        limit = self.settings["max_pixels"]
        if width * height > limit:
            setting = "export.max_megapixels in the model's spec"
            raise BadImage(f"the image has {width} x {height} pixels, the limit is {limit} ({setting})")
        check_work(scans, width, height, limit)

    def _resized(self, image: Image.Image) -> Image.Image:
        to = self.settings["resize"]
        if to is None:
            return image
        if isinstance(to, int):
            short, long = sorted(image.size)
            sizes = (to, self._long(to * long / short))
            width, height = sizes if image.width <= image.height else reversed(sizes)
        else:
            height, width = to
        return image.resize((width, height), Image.Resampling(self.settings["filter"]))

    def _long(self, edge: float) -> int:
        """The longer edge of a resized image: a thin line of a few pixels would become a huge one."""
        most = self.settings["max_pixels"] // self.settings["resize"]
        if edge > most:
            raise BadImage(
                f"the image would be resized to {int(edge)} pixels along its longer edge, the limit is {most}"
            )
        return int(edge)

    def _cropped(self, image: Image.Image) -> Image.Image:
        """The middle of an image; what lies outside of a smaller one is black."""
        if not self.settings["crop"]:
            return image
        height, width = self.settings["crop"]
        left, top = (image.width - width) // 2, (image.height - height) // 2
        return image.crop((left, top, left + width, top + height))

    def encode(self, images: Sequence[Picture]) -> list[Any]:
        """What the graph takes of each image: float32 of shape (channels, height, width)."""
        return [self._normal(image.pixels) for image in images]

    def _normal(self, image: Any) -> Any:
        scale, mean, std = (self.settings[name] for name in ("scale", "mean", "std"))
        array = (image if scale is None else image.astype(np.float64) * scale).astype(np.float32)
        if mean is None:
            return array
        return ((array.T - np.array(mean, np.float32)) / np.array(std, np.float32)).T

    def feeds(self, encodings: Sequence[Any]) -> Arrays:
        """The graph's input, float32 of shape (images, channels, height, width)."""
        return {PIXELS: np.ascontiguousarray(np.stack(encodings))}

    def answers(self, images: Sequence[Picture], _encodings: Sequence[Any], outputs: Arrays) -> Arrays:
        """The labels with the highest scores, highest first: `label` and `score`, each of shape (images, top).

        Or `objects`, of shape (images, 1): JSON of each image's objects, with `score`, `label`, and `box` in pixels.
        """
        if self.settings["task"] == "object-detection":
            found = map(self._objects, images, outputs["probabilities"], outputs["boxes"])
            return {"objects": np.array([json.dumps(objects) for objects in found], dtype=object).reshape(-1, 1)}
        scores = outputs["probabilities"]
        best = np.argsort(-scores, axis=1, kind="stable")[:, : self.settings["top"]]
        return {
            "label": np.array(self.settings["labels"], dtype=object)[best],
            "score": np.take_along_axis(scores, best, axis=1).astype(np.float32),
        }

    def _objects(self, image: Picture, probabilities: Any, boxes: Any) -> list[dict[str, Any]]:
        """The objects in an image, from (boxes, classes) probabilities and (boxes, 4) corners relative to its size."""
        if self.settings["ranked"]:
            best = np.argsort(-probabilities, axis=None, kind="stable")[: self.settings["top"]]
            which, classes = np.divmod(best, probabilities.shape[1])
        else:
            which, classes = np.arange(len(boxes)), probabilities.argmax(axis=1)
        scores = probabilities[which, classes]
        corners = boxes[which] * np.array([image.width, image.height] * 2, np.float32)
        return [
            {
                "score": float(scores[at]),
                "label": self.settings["labels"][classes[at]],
                "box": dict(zip(_CORNERS, map(int, corners[at]))),
            }
            for at in np.flatnonzero(scores > self.settings["threshold"])
        ]

    def split(self, requests: Sequence[tuple[Any, Any]], outputs: Arrays) -> Iterator[Arrays]:
        """The answers to each request of a batch."""
        start = 0
        for images, encodings in requests:
            rows = slice(start, start + len(images))
            yield self.answers(images, encodings, {name: array[rows] for name, array in outputs.items()})
            start = rows.stop

    def run(self, samples: Sequence[Item], graph: Callable[[Arrays], Arrays]) -> Arrays:
        """The answers to images, asked of `graph` in one batch.

        Raises:
            BadImage: the model can't take an image.
        """
        images = self.read(samples)
        encodings = self.encode(images)
        return self.answers(images, encodings, graph(self.feeds(encodings)))


def _file(item: Item) -> bytes:
    """The bytes of an image file, which may come as base64, as `mlflow.pyfunc` takes it."""
    body = item if isinstance(item, bytes) else item.encode(errors="replace")
    if len(body) > MAX_IMAGE_BYTES:
        raise BadImage(f"the image has {len(body)} bytes, the limit is {MAX_IMAGE_BYTES}: send a smaller one")
    if not body:
        raise BadImage("the image has 0 bytes")
    if not body.startswith(MAGIC):
        try:
            body = base64.b64decode(b"".join(body.split()), validate=True)
        except (binascii.Error, ValueError):
            body = b""
    if not body.startswith(MAGIC):
        raise BadImage("the input is not a JPEG or PNG file, nor base64 of one")
    return body


Front, Refused = ImageFront, BadImage  # what `model.py` calls them
