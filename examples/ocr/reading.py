"""The Python steps of the OCR pipeline: from JPEG to lines, and from the recogniser's characters to text.

They do what rapidocr does around its three models, for upright text, with what every bundled server has: NumPy and
Pillow. Each function is a step of `pipeline.yaml`. `CHARACTERS` comes from the recogniser's file: `weights.py` writes
it below, because a pipeline takes only the files of its steps.
"""

import io
from typing import Any

import numpy as np
from PIL import Image

CHARACTERS: list[str] = []
HEIGHT, TURN_WIDTH = 48, 192  # pixels of a line for the recogniser, and the width for the direction classifier
SHORT, WIDER = 480, 160  # pixels: how wide short lines are, and in what steps the long ones
MIN_SIDE, MAX_SIDE, STRIDE = 736, 2000, 32  # pixels of the detector's page
INK, BOX_SCORE, TEXT_SCORE, TURN_SCORE = 0.3, 0.5, 0.5, 0.9
UNCLIP = 1.6  # of area/perimeter: how far a box of ink grows, since the detector marks the middle of a line
SAME_LINE = 10  # pixels
GREY = 128  # what the models see as 0
Box = tuple[int, int, int, int]  # left, top, right, bottom


def decode(jpeg: Any) -> dict[str, Any]:
    """A file's bytes, uint8 (1, size), to `image`, BGR (1, height, width, 3), and `page`, as the detector takes it."""
    image = Image.open(io.BytesIO(jpeg.tobytes())).convert("RGB")
    if max(image.size) > MAX_SIDE:
        image = image.resize(_multiples(image.size, MAX_SIDE / max(image.size)), Image.Resampling.BILINEAR)
    page = image.resize(_multiples(image.size, max(1, MIN_SIDE / min(image.size))), Image.Resampling.BILINEAR)
    return {"image": _bgr(image), "page": _bgr(page)}


def crop(image: Any, page: Any, heat: Any) -> dict[str, Any]:
    """The lines of an image.

    `heat`, float32 (1, 1, height, width), is how likely each pixel of `page` is ink. The lines come in two groups of
    a width each, uint8 (lines, 48, width, 3), so that `short` ones cost little, and those of all requests fit in a
    batch. Of all lines, the short ones first: `boxes`, float32 (lines, 4, 2), corners clockwise from the upper left;
    `places`, int32 (lines, 1), where they come in reading order; `widths`, their own; and `heads`, uint8 (lines, 48,
    192, 3), for the direction classifier.
    """
    across, down = image.shape[2] / page.shape[2], image.shape[1] / page.shape[1]
    boxes = [_scaled(box, across, down, image.shape) for box in _boxes(heat[0, 0])]
    boxes = _in_reading_order([box for box in boxes if box[2] - box[0] > 3 and box[3] - box[1] > 3])
    crops = [_upright(image[0, top:bottom, left:right]) for left, top, right, bottom in boxes]
    order = sorted(range(len(crops)), key=lambda at: _width(crops[at]) > SHORT)
    boxes, crops = [boxes[at] for at in order], [crops[at] for at in order]
    widths = [_width(each) for each in crops]
    lines = [_fitted(each, own) for each, own in zip(crops, widths, strict=True)]
    short = sum(own <= SHORT for own in widths)
    widest = max([SHORT + WIDER, *widths])
    corners = [[(left, top), (right, top), (right, bottom), (left, bottom)] for left, top, right, bottom in boxes]
    return {
        "boxes": np.array(corners, dtype=np.float32).reshape(-1, 4, 2),
        "places": np.array(order, dtype=np.int32).reshape(-1, 1),
        "widths": np.array(widths, dtype=np.int32).reshape(-1, 1),
        "short": _rows(lines[:short], SHORT),
        "long": _rows(lines[short:], -(-widest // WIDER) * WIDER),
        "heads": _rows(
            [_fitted(each, min(own, TURN_WIDTH)) for each, own in zip(crops, widths, strict=True)], TURN_WIDTH
        ),
    }


def turn(short: Any, long: Any, widths: Any, ways: Any) -> dict[str, Any]:
    """Turns the lines that stand on their heads; `ways` is float32 (lines, 2), how likely each is upright, or not."""
    turned = {"upright_short": short.copy(), "upright_long": long.copy()}
    rows = [*turned["upright_short"], *turned["upright_long"]]
    for at in np.flatnonzero(ways[:, 1] > TURN_SCORE):
        own = rows[at][:, : widths[at, 0]]
        own[:] = own[::-1, ::-1].copy()
    return turned


def spell(boxes: Any, places: Any, short: Any, short_sure: Any, long: Any, long_sure: Any) -> dict[str, Any]:
    """`text`, BYTES (1, 1): the lines that are sure enough, in reading order; with a `box` and a `score` for each.

    `short` and `long`, int64, are (lines, positions), the likeliest character of each, and `short_sure` and
    `long_sure`, float32, how likely it is.
    """
    read = [_spelt(*line) for line in [*zip(short, short_sure, strict=True), *zip(long, long_sure, strict=True)]]
    order = [at for at in np.argsort(places[:, 0]) if read[at][1] >= TEXT_SCORE]
    return {
        "text": np.array([["\n".join(read[at][0] for at in order).encode()]], dtype=np.object_),
        "box": boxes[order],
        "score": np.array([read[at][1] for at in order], dtype=np.float32).reshape(-1, 1),
    }


def _spelt(ids: Any, sure: Any) -> tuple[str, float]:
    """A line's text, and how sure it is, by CTC: repeated characters count once, and number 0 is none."""
    new = np.append(True, ids[1:] != ids[:-1]) & (ids != 0)
    text = "".join(CHARACTERS[each - 1] if each <= len(CHARACTERS) else " " for each in ids[new])
    return text, float(sure[new].mean()) if new.any() else 0.0


# --- pixels ---------------------------------------------------------------------------------------------------------


def _bgr(image: Any) -> Any:
    return np.ascontiguousarray(np.asarray(image)[None, :, :, ::-1])


def _multiples(size: tuple[int, int], ratio: float) -> tuple[int, int]:
    """A size times the ratio, in the detector's strides."""
    width, height = (max(STRIDE, round(int(side * ratio) / STRIDE) * STRIDE) for side in size)
    return width, height


def _upright(pixels: Any) -> Any:
    """A column of characters becomes a line."""
    return np.rot90(pixels) if pixels.shape[0] >= 1.5 * pixels.shape[1] else pixels


def _width(pixels: Any) -> int:
    return int(np.ceil(HEIGHT * pixels.shape[1] / pixels.shape[0]))


def _fitted(pixels: Any, width: int) -> Any:
    image = Image.fromarray(np.ascontiguousarray(pixels))
    return np.asarray(image.resize((width, HEIGHT), Image.Resampling.BILINEAR))


def _rows(lines: list[Any], width: int) -> Any:
    """All lines in one array, with grey behind each."""
    rows = np.full((len(lines), HEIGHT, width, 3), GREY, dtype=np.uint8)
    for row, line in enumerate(lines):
        rows[row, :, : line.shape[1]] = line
    return rows


# --- boxes ----------------------------------------------------------------------------------------------------------


def _boxes(heat: Any) -> list[Box]:
    """The upright boxes of connected ink, grown to the whole characters."""
    boxes = []
    for left, top, right, bottom in _connected(_dilated(heat > INK)):
        width, height = right - left, bottom - top
        if min(width, height) < 3 or heat[top : bottom + 1, left : right + 1].mean() < BOX_SCORE:
            continue
        grown = UNCLIP * width * height / (2 * (width + height))
        box = tuple(round(each) for each in (left - grown, top - grown, right + grown, bottom + grown))
        if min(box[2] - box[0], box[3] - box[1]) >= 5:
            boxes.append(box)
    return boxes  # type: ignore[return-value]


def _dilated(ink: Any) -> Any:
    """Each pixel that is ink, or whose left, upper or upper left neighbour is."""
    dilated = ink.copy()
    dilated[:, 1:] |= ink[:, :-1]
    dilated[1:] |= dilated[:-1].copy()
    return dilated


def _connected(ink: Any) -> list[Box]:
    """The bounding boxes, inclusive, of what touches, also by a corner: runs of rows, joined by union-find."""
    edges = np.diff(np.pad(ink, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    rows, starts = np.nonzero(edges == 1)
    _, ends = np.nonzero(edges == -1)  # exclusive
    parents = list(range(len(rows)))

    def root(run: int) -> int:
        while parents[run] != run:
            parents[run] = run = parents[parents[run]]
        return run

    stride = ink.shape[1] + 2  # makes one ascending number of a row and a column
    first = np.searchsorted(rows * stride + ends, (rows - 1) * stride + starts)
    last = np.searchsorted(rows * stride + starts, (rows - 1) * stride + ends, side="right")
    for run, (begin, end) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        for above in range(begin, end):
            parents[root(run)] = root(above)
    boxes: dict[int, Box] = {}
    for run, (row, start, end) in enumerate(zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True)):
        left, top, right, bottom = boxes.get(root(run), (start, row, end - 1, row))
        boxes[root(run)] = min(left, start), min(top, row), max(right, end - 1), max(bottom, row)
    return list(boxes.values())


def _scaled(box: Box, across: float, down: float, shape: tuple[int, ...]) -> Box:
    """A box of the page as one of the image, within it."""
    left, right = (min(max(round(x * across), 0), shape[2] - 1) for x in (box[0], box[2]))
    top, bottom = (min(max(round(y * down), 0), shape[1] - 1) for y in (box[1], box[3]))
    return left, top, right, bottom


def _in_reading_order(boxes: list[Box]) -> list[Box]:
    """From top to bottom; boxes whose tops are nearly level, from left to right."""
    ordered = sorted(boxes, key=lambda box: (box[1], box[0]))
    for last in range(1, len(ordered)):
        for at in range(last, 0, -1):
            before, box = ordered[at - 1], ordered[at]
            if box[1] - before[1] >= SAME_LINE or box[0] >= before[0]:
                break
            ordered[at - 1], ordered[at] = box, before
    return ordered
