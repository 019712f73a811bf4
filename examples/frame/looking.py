"""How a frame is scaled, and a JPEG decoded: as a Python step of a pipeline, and by clients."""

import io
from typing import Any

import numpy as np
from PIL import Image

SIDE = 224  # pixels: what all nine models take


def decode(jpeg: Any) -> dict[str, Any]:
    """A file's bytes, uint8 (1, size), to `pixels`, uint8 RGB (1, 224, 224, 3), as the pipeline's decoder does it.

    `draft` lets libjpeg decode at the nearest larger scale, which for large frames is a fraction of the work.
    """
    image = Image.open(io.BytesIO(jpeg.tobytes()))
    image.draft("RGB", (SIDE, SIDE))
    scaled = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return {"pixels": np.asarray(scaled)[None]}


def scale(frame: Any) -> dict[str, Any]:
    """uint8 RGB (1, height, width, 3) to `pixels` of the same size as `decode`'s."""
    scaled = Image.fromarray(frame[0]).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return {"pixels": np.asarray(scaled)[None]}
