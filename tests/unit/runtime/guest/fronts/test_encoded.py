"""Image files that are small and take long to decode: refused before they are, while honest ones are not."""

import io
import struct
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image, ImageFile

from shiplift.runtime.guest.fronts import encoded
from shiplift.runtime.guest.fronts.encoded import BadImage, Metered, scans_of
from shiplift.runtime.guest.fronts.pixel_front import decoded

SETTINGS = {"colors": "RGB", "max_megapixels": 16, "draft": False, "resize": 8, "filter": "bilinear", "crop": None}


def saved(kind: str = "JPEG", size: int = 64, **options: object) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 255, (size, size, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def with_scans(count: int, size: int = 64) -> bytes:
    """A progressive JPEG whose last scan is repeated until there are `count`."""
    body = saved(size=size, progressive=True)
    last = body.rindex(b"\xff\xda")
    return body[:last] + body[last:-2] * (count - scans_of(body) + 1) + b"\xff\xd9"


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(edge: int) -> bytes:
    """A PNG file that says it has this many pixels along each edge, and has them, all black."""
    header = struct.pack(">IIBBBBB", edge, edge, 8, 2, 0, 0, 0)
    rows = zlib.compress(bytes((3 * edge + 1) * min(edge, 64)))
    return encoded.MAGIC[1] + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def test_honest_images_are_decoded() -> None:
    thumbnail = saved(size=16, progressive=True)
    exif = b"Exif\x00\x00" + thumbnail  # its markers are not those of the file
    for body in (
        saved(),
        saved(progressive=True),
        saved(progressive=True, exif=exif),
        saved(quality=100, optimize=True, icc_profile=bytes(200_000)),
        saved("PNG"),
        saved("PNG", size=1500),
    ):
        assert 1 <= scans_of(body) <= 10
        assert decoded(body, SETTINGS).shape == (8, 8, 3)


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda: with_scans(6000), "has over 100 scans, the limit"),
        (lambda: with_scans(101), "has over 100 scans, the limit"),
        pytest.param(
            lambda: with_scans(30, size=4000),
            "has 30 scans, the limit for 4000 x 4000 pixels is 16",
            marks=pytest.mark.slow,
        ),
        (lambda: b"\xff\xd8" + b"\xff\xe1\x00\x02" * 4_000_000, "has over 4096 segments"),
        (lambda: b"\xff\xd8" + b"\xff\xe1\x00\x02" + b"garbage\xff\xff\xff" * 5000 + b"\xe1", "damaged|segments"),
        (
            lambda: saved("PNG")[:33] + chunk(b"tEXt", b"a\x00b") * 1_000_000 + saved("PNG")[33:],
            "has over 4096 segments",
        ),
        (lambda: bomb(60_000), "the limit is 16000000"),
        (lambda: bomb(5_000), "the limit is 16000000"),
    ],
    ids=["scans", "one scan", "work", "markers", "garbage", "chunks", "huge", "large"],
)
def test_a_file_that_would_take_long_is_refused_before_it_is_decoded(
    made: Callable[[], bytes], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = made()
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("decoded"))  # without limits: a minute
    with pytest.raises(BadImage, match=told):
        decoded(body, SETTINGS)


def test_the_limit_of_cpu_time_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoded, "CPU_S", -1.0)
    with pytest.raises(BadImage, match="took over -1 s of CPU time, the limit"):
        decoded(saved(), SETTINGS)
    with pytest.raises(BadImage):
        Metered(b"x").read()
