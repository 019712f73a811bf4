"""The Python steps of `examples/ocr`: boxes of ink, lines in two widths, and texts."""

import importlib.util
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw

FILE = Path(__file__).parents[2] / "examples" / "ocr" / "reading.py"


@pytest.fixture(scope="module")
def steps() -> Any:
    spec = importlib.util.spec_from_file_location("ocr_reading", FILE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.CHARACTERS[:] = ["a", "b"]
    return module


@pytest.mark.parametrize("share", [0.0, 0.02, 0.2, 0.5, 0.8, 1.0])
def test_boxes_are_those_of_what_touches(steps: Any, share: float) -> None:
    from scipy import ndimage

    for seed in range(20):
        ink = np.random.default_rng(seed).random((23, 31)) < share
        labels, _ = ndimage.label(ink, structure=np.ones((3, 3)))
        wanted = {(x.start, y.start, x.stop - 1, y.stop - 1) for y, x in ndimage.find_objects(labels)}
        assert set(steps._connected(ink)) == wanted


def test_a_page_is_cut_into_lines_in_reading_order(steps: Any) -> None:
    page = np.full((1, 320, 960, 3), 255, dtype=np.uint8)
    heat = np.zeros((1, 1, 320, 960), dtype=np.float32)
    for left, top, right, bottom in ((500, 33, 560, 53), (40, 30, 140, 50), (40, 100, 900, 120)):
        heat[0, 0, top:bottom, left:right] = 0.9
    cut = steps.crop(page, page, heat)
    order = np.argsort(cut["places"][:, 0])
    assert [box[0, 0] < 60 for box in cut["boxes"][order]] == [True, False, True]  # the second begins on the right
    assert (cut["short"].shape, cut["long"].shape[:2]) == ((2, 48, 480, 3), (1, 48))
    assert cut["long"].shape[2] % 160 == 0
    assert cut["widths"][2, 0] > 480
    assert cut["heads"].shape == (3, 48, 192, 3)


def test_a_blank_page_has_no_lines(steps: Any) -> None:
    page = np.zeros((1, 64, 64, 3), dtype=np.uint8)
    cut = steps.crop(page, page, np.zeros((1, 1, 64, 64), dtype=np.float32))
    assert [len(cut[name]) for name in ("boxes", "places", "widths", "short", "long", "heads")] == [0] * 6
    turned = steps.turn(cut["short"], cut["long"], cut["widths"], np.zeros((0, 2), np.float32))
    assert [len(each) for each in turned.values()] == [0, 0]
    none, unsure = np.zeros((0, 0), np.int64), np.zeros((0, 0), np.float32)
    read = steps.spell(cut["boxes"], cut["places"], none, unsure, none, unsure)
    assert read["text"].tolist() == [[b""]]
    assert read["box"].shape == (0, 4, 2)


def test_only_the_lines_that_stand_on_their_heads_are_turned(steps: Any) -> None:
    short = np.random.default_rng(0).integers(0, 256, (2, 48, 480, 3), dtype=np.uint8)
    long = np.full((1, 48, 640, 3), 128, dtype=np.uint8)
    widths = np.array([[100], [200], [640]], dtype=np.int32)
    ways = np.array([[0.95, 0.05], [0.02, 0.98], [0.2, 0.8]], dtype=np.float32)
    turned = steps.turn(short, long, widths, ways)
    np.testing.assert_array_equal(turned["upright_short"][0], short[0])
    np.testing.assert_array_equal(turned["upright_short"][1, :, :200], short[1, ::-1, :200][:, ::-1])
    np.testing.assert_array_equal(turned["upright_short"][1, :, 200:], short[1, :, 200:])
    np.testing.assert_array_equal(turned["upright_long"], long)


def test_repeated_characters_count_once_and_unsure_lines_not_at_all(steps: Any) -> None:
    boxes = np.arange(24, dtype=np.float32).reshape(3, 4, 2)
    short = np.array([[1, 1, 0, 1, 3, 2], [2, 0, 0, 0, 0, 0]])
    short_sure = np.array([[0.9] * 6, [0.3] * 6], dtype=np.float32)
    long, long_sure = np.array([[2, 2, 2, 1, 0, 0, 0, 0]]), np.full((1, 8), 0.8, dtype=np.float32)
    places = np.array([[1], [2], [0]], dtype=np.int32)  # the long line comes first on the page
    read = steps.spell(boxes, places, short, short_sure, long, long_sure)
    assert read["text"].tolist() == [[b"ba\naa b"]]
    np.testing.assert_array_equal(read["box"], boxes[[2, 0]])
    np.testing.assert_allclose(read["score"][:, 0], [0.8, 0.9])


def test_a_small_image_is_enlarged_for_the_detector_and_a_large_one_scaled_down(steps: Any) -> None:
    for size, page in (((100, 50), (736, 1472)), ((3000, 1500), (992, 1984))):
        image = Image.new("RGB", size, "red")
        ImageDraw.Draw(image).rectangle((0, 0, 10, 10), "blue")
        image.save(file := io.BytesIO(), "JPEG", quality=95)
        decoded = steps.decode(np.frombuffer(file.getvalue(), dtype=np.uint8)[None])
        assert decoded["page"].shape == (1, *page, 3)
        blue, green, red = decoded["image"][0, -1, -1].tolist()
        assert red > 200 > blue + green
