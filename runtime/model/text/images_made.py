"""Images with which every model of images is tested, whatever its example: several sizes and both formats."""

import base64
import io

import numpy as np

_SIZES = ((640, 480), (31, 97), (224, 224))
_SEED = 20240229


def made_images() -> list[str]:
    """Images of several sizes and kinds, as base64: a resizing filter changes noise most."""
    from PIL import Image  # noqa: PLC0415 - needs an extra

    rng, images = np.random.default_rng(_SEED), []
    for at, (width, height) in enumerate(_SIZES):
        noise = Image.fromarray(rng.integers(0, 256, (height // 4 + 1, width // 4 + 1, 3), dtype=np.uint8))
        body = io.BytesIO()
        noise.resize((width, height)).save(body, "PNG" if at % 2 else "JPEG")
        images.append(base64.b64encode(body.getvalue()).decode())
    return images
