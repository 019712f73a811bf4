"""Images in, around a graph that takes pixels: decoding, resizing, cropping and normalising with Pillow.

The same code checks a model and serves it, and decodes for pipelines. Only JPEG and PNG are decoded, and nothing is
before its header says that it is small enough.

Process: Triton's Python backend or a process beside it, as `front.py` beside `encoded.py`; Shiplift's sandbox.
Python: the server's
Packages: numpy, PIL
"""

import base64
import binascii
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

if __package__:
    from .encoded import FORMATS, MAGIC, BadImage, Metered, check_work, scans_of  # noqa: TID251 - in Shiplift
else:
    from encoded import FORMATS, MAGIC, BadImage, Metered, check_work, scans_of

SETTINGS = "pixels.json"
MAX_IMAGE_BYTES = 64 << 20
_TYPES = {"UINT8": np.uint8, "FP16": np.float16, "FP32": np.float32}
Arrays = dict[str, Any]
Settings = Mapping[str, Any]
Image.MAX_IMAGE_PIXELS = None  # the limit here is lower, and its error has the sizes


def decoded(body: bytes, settings: Settings) -> Any:
    """The pixels of a file, uint8 of shape (height, width, channels), resized and cropped.

    Raises:
        BadImage: it is not a JPEG or PNG file, is damaged, too large, or takes too long.
    """
    if len(body) > MAX_IMAGE_BYTES:
        raise BadImage(f"the image has {len(body)} bytes, the limit is {MAX_IMAGE_BYTES}: send a smaller one")
    mode = "L" if settings["colors"] == "gray" else "RGB"
    scans = scans_of(body)
    try:
        with Image.open(Metered(body), formats=FORMATS) as image:
            _check(image, settings, scans)
            if settings["draft"]:
                image.draft(mode, _least(settings))
            image.load()
            upright = ImageOps.exif_transpose(image).convert(mode)
    except BadImage:
        raise
    except UnidentifiedImageError:
        raise BadImage("the image is not a JPEG or PNG file, or its header is damaged") from None
    except Exception as error:  # Pillow's readers raise whatever a damaged file makes them
        raise BadImage(f"the image can't be decoded: {' '.join(str(error).split())[:200]}") from None
    pixels = np.asarray(_cropped(_resized(upright, settings), settings))
    pixels = pixels[:, :, None] if mode == "L" else pixels
    return pixels[:, :, ::-1] if settings["colors"] == "BGR" else pixels


def _check(image: Image.Image, settings: Settings, scans: int) -> None:
    limit = settings["max_megapixels"] * 1_000_000
    if image.width * image.height > limit:
        raise BadImage(f"the image has {image.width} x {image.height} pixels, the limit is {limit} (`max_megapixels`)")
    check_work(scans, image.width, image.height, limit)


def _least(settings: Settings) -> tuple[int, int]:
    """The width and height below which a draft must not fall."""
    to = settings["resize"]
    return (to, to) if isinstance(to, int) else (to[1], to[0])


def _resized(image: Image.Image, settings: Settings) -> Image.Image:
    """As `torchvision.transforms.functional.resize` does with Pillow's images."""
    to = settings["resize"]
    if isinstance(to, int):
        short, long = sorted(image.size)
        edge, most = int(to * long / short), settings["max_megapixels"] * 1_000_000 // to
        if edge > most:
            raise BadImage(f"the image would be resized to {edge} pixels along its longer edge, the limit is {most}")
        width, height = (to, edge) if image.width <= image.height else (edge, to)
    else:
        height, width = to
    return image.resize((width, height), Image.Resampling[settings["filter"].upper()])


def _cropped(image: Image.Image, settings: Settings) -> Image.Image:
    """As torchvision's `center_crop` does; what lies outside of a smaller image is black."""
    if not settings["crop"]:
        return image
    height, width = settings["crop"]
    left, top = round((image.width - width) / 2), round((image.height - height) / 2)
    return image.crop((left, top, left + width, top + height))


def normalized(pixels: Any, settings: Settings) -> Any:
    """Pixels of a file as a tensor of `layout` and `datatype`, without a dimension for the batch."""
    scale, mean, std = (settings[name] for name in ("scale", "mean", "std"))
    if scale is not None or mean or std:
        pixels = pixels.astype(np.float32) * np.float32(1.0 if scale is None else scale)
        pixels = (pixels - np.array(mean or (0.0,), np.float32)) / np.array(std or (1.0,), np.float32)
    pixels = pixels.transpose(2, 0, 1) if settings["layout"] == "NCHW" else pixels
    return np.ascontiguousarray(pixels, dtype=_TYPES[settings["datatype"]])


class PixelFront:
    """What is around a model's graph.

    `pixels.json` has what `shiplift.runtime.spec.images.ImageDecoder` has, and: `inputs`, the name of what clients
    send; `pixels`, the graph's input; and its `datatype`.
    """

    def __init__(self, folder: Path) -> None:
        self.settings: dict[str, Any] = json.loads((folder / SETTINGS).read_text())

    def samples(self, inputs: Arrays) -> list[Any]:
        """The images of arrays by input name."""
        return list(inputs[self.settings["inputs"][0]].reshape(-1))

    def as_files(self, samples: Sequence[Any]) -> list[bytes]:
        """The images' files, which may have come as base64.

        Raises:
            BadImage: one is not such a file.
        """
        return [_file(sample) for sample in samples]

    def read(self, samples: Sequence[Any]) -> list[Any]:
        """The pixels of images, each a JPEG or PNG file, or base64 of one.

        Raises:
            BadImage: one is not such a file, is damaged, or too large.
        """
        return [decoded(_file(sample), self.settings) for sample in samples]

    def encode(self, images: Sequence[Any]) -> list[Any]:
        """What the graph takes of each image."""
        return [normalized(image, self.settings) for image in images]

    def feeds(self, encodings: Sequence[Any]) -> Arrays:
        """The graph's input for a batch."""
        return {self.settings["pixels"]: np.ascontiguousarray(np.stack(encodings))}

    def answers(self, _images: Sequence[Any], _encodings: Sequence[Any], outputs: Arrays) -> Arrays:
        """The graph's own outputs."""
        return outputs

    def split(self, requests: Sequence[tuple[Any, Any]], outputs: Arrays) -> Iterator[Arrays]:
        """The answers to each request of a batch."""
        start = 0
        for images, _ in requests:
            rows = slice(start, start + len(images))
            yield {name: array[rows] for name, array in outputs.items()}
            start = rows.stop

    def run(self, samples: Sequence[Any], graph: Callable[[Arrays], Arrays]) -> Arrays:
        """The answers to images, asked of `graph` in one batch.

        Raises:
            BadImage: the model can't take an image.
        """
        return graph(self.feeds(self.encode(self.read(samples))))


def _file(item: bytes | str) -> bytes:
    """The bytes of an image file, which may come as base64: tensors of text carry nothing else."""
    body = item if isinstance(item, bytes) else item.encode(errors="replace")
    if body.startswith(MAGIC):
        return body
    if len(body) > 2 * MAX_IMAGE_BYTES:
        raise BadImage(f"the image has {len(body)} bytes, the limit is {MAX_IMAGE_BYTES}: send a smaller one")
    try:
        return base64.b64decode(b"".join(body.split()), validate=True)
    except (binascii.Error, ValueError):
        raise BadImage("the image is not a JPEG or PNG file, nor base64 of one") from None


Front, Refused = PixelFront, BadImage  # what `model.py` calls them
