"""Pages to read: printed words on white, as JPEG, the same for the same seed."""

import io
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

WIDTH, HEIGHT, MARGIN, LINES = 736, 960, 40, 16
WORDS = [
    "invoice",
    "total",
    "amount",
    "paid",
    "order",
    "number",
    "customer",
    "delivery",
    "address",
    "street",
    "city",
    "harbour",
    "shipment",
    "weight",
    "package",
    "date",
    "due",
    "balance",
    "account",
    "credit",
    "terms",
    "discount",
    "net",
    "gross",
    "tax",
    "quantity",
    "unit",
    "price",
    "item",
    "freight",
    "container",
    "customs",
    "declared",
    "value",
    "insurance",
    "carrier",
    "vessel",
    "port",
    "loading",
    "discharge",
    "signature",
    "received",
    "condition",
    "remarks",
]


def files(jpegs: list[bytes]) -> Any:
    """Files as one array, uint8 (files, size of the largest), with zeros behind the others."""
    rows = np.zeros((len(jpegs), max(map(len, jpegs))), dtype=np.uint8)
    for row, jpeg in zip(rows, jpegs, strict=True):
        row[: len(jpeg)] = np.frombuffer(jpeg, dtype=np.uint8)
    return rows


def page(seed: int) -> tuple[bytes, str]:
    """A JPEG of sixteen lines, and its text.

    Words are joined by hyphens: whether that recogniser sees a space depends on how wide the batch of a line is.
    """
    rng = np.random.default_rng(seed)
    image = Image.new("RGB", (WIDTH, HEIGHT), "white")
    draw = ImageDraw.Draw(image)
    lines = []
    for row in range(LINES):
        size = int(rng.integers(20, 30))
        words = "-".join(rng.choice(WORDS, size=int(rng.integers(2, 5)))) + f"-{rng.integers(10, 9999)}"
        font = ImageFont.load_default(size)
        while draw.textlength(words, font=font) > WIDTH - 2 * MARGIN:
            words = words.partition("-")[2]
        left = MARGIN + int(rng.integers(0, WIDTH - 2 * MARGIN - int(draw.textlength(words, font=font))))
        lines.append(words)
        draw.text((left, MARGIN + row * (HEIGHT - 2 * MARGIN) // LINES), words, fill="black", font=font)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90)
    return file.getvalue(), "\n".join(lines)
