"""Images as JPEG files of some quality, to find out how much that costs a model: its clients may send such files.

An image is a file, or pixels in the form that a model takes: those of `pixel_front.normalized`, which is undone first.
"""

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from shiplift.runtime.guest.fronts.encoded import FORMATS
from shiplift.runtime.guest.fronts.pixel_front import normalized

Pixels = NDArray[np.uint8]
"""An image of shape (height, width, 3) in RGB, or (height, width) in gray."""


def pixels_of_file(body: bytes) -> Pixels:
    """The pixels of a JPEG or PNG file that a front has accepted, upright."""
    with Image.open(io.BytesIO(body), formats=FORMATS) as image:
        upright = ImageOps.exif_transpose(image)
        return np.asarray(upright.convert("L" if upright.mode in ("1", "L") else "RGB"))


def pixels_of_tensor(tensor: NDArray[Any], settings: Mapping[str, Any]) -> Pixels:
    """The pixels from which `pixel_front.normalized` made this tensor, which has no batch dimension."""
    values = tensor.astype(np.float32)
    values = values.transpose(1, 2, 0) if settings["layout"] == "NCHW" else values
    values = values * np.array(settings["std"] or (1.0,), np.float32) + np.array(settings["mean"] or (0.0,), np.float32)
    scale = settings["scale"]
    values = values / np.float32(1.0 if scale is None else scale)
    pixels = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return _in_order(pixels, settings)[:, :, 0] if pixels.shape[2] == 1 else _in_order(pixels, settings)


def tensor_of(pixels: Pixels, settings: Mapping[str, Any]) -> NDArray[Any]:
    """The opposite of `pixels_of_tensor`."""
    channels = pixels[:, :, None] if pixels.ndim == 2 else pixels
    tensor: NDArray[Any] = normalized(_in_order(channels, settings), settings)
    return tensor


def encoded(pixels: Pixels, quality: int) -> bytes:
    """A JPEG file with a quality from 1 to 100, and Pillow's other settings."""
    body = io.BytesIO()
    Image.fromarray(pixels).save(body, "JPEG", quality=quality)
    return body.getvalue()


def _in_order(pixels: NDArray[Any], settings: Mapping[str, Any]) -> NDArray[Any]:
    """RGB in the model's order of colors, or back."""
    return pixels[:, :, ::-1] if settings["colors"] == "BGR" else pixels
