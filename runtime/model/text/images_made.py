"""Images with which every model of images is tested, whatever its example: sizes, formats, colors and directions."""

import base64
import io
from typing import Any

import numpy as np

_SIZES = ((640, 480), (31, 97), (224, 224))
_ORIENTATION, _TURNED = 0x0112, 6  # of EXIF: to be shown turned by a quarter
_SEED = 20240229


def made_images() -> list[str]:
    """Images of several sizes and kinds, as base64: a resizing filter changes noise most."""
    from PIL import Image  # noqa: PLC0415 - needs an extra

    rng = np.random.default_rng(_SEED)

    def noise(width: int, height: int) -> Any:
        small = rng.integers(0, 256, (height // 4 + 1, width // 4 + 1, 3), dtype=np.uint8)
        return Image.fromarray(small).resize((width, height))

    images = [_encoded(noise(*size), "PNG" if at % 2 else "JPEG") for at, size in enumerate(_SIZES)]
    turned = Image.Exif()
    turned[_ORIENTATION] = _TURNED
    return [
        *images,
        _encoded(noise(40, 30).convert("L"), "PNG"),
        _encoded(noise(33, 50).convert("L"), "JPEG"),
        _encoded(_faded(noise(50, 33)), "PNG"),
        _encoded(noise(45, 45).convert("P"), "PNG"),
        _encoded(noise(64, 20), "JPEG", exif=turned),
    ]


def _faded(image: Any) -> Any:
    """The image, from left to right more and more transparent."""
    from PIL import Image  # noqa: PLC0415

    image.putalpha(Image.linear_gradient("L").rotate(90).resize(image.size))
    return image


def _encoded(image: Any, form: str, **options: Any) -> str:
    body = io.BytesIO()
    image.save(body, form, **options)
    return base64.b64encode(body.getvalue()).decode()
