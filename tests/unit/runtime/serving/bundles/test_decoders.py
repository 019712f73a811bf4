"""Decoders as members: their configurations, and that what is decoded is what Pillow makes of the same file."""

import ast
import importlib.util
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pydantic import ValidationError

from shiplift.runtime.base.names import serving_name
from shiplift.runtime.composition.check import check
from shiplift.runtime.composition.checked import Unusable
from shiplift.runtime.guest.fronts.encoded import BadImage
from shiplift.runtime.guest.fronts.pixel_front import decoded, normalized
from shiplift.runtime.model.tensors import load_npz
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.serving import Nodes
from shiplift.runtime.serving.bundles import decoders, graph
from shiplift.runtime.serving.bundles.decoders import (
    dali_config,
    dali_source,
    decoder_package,
    decoder_settings,
    golden,
    members_of,
)
from shiplift.runtime.serving.bundles.repository import write_bundle
from shiplift.runtime.serving.triton.config import render
from shiplift.runtime.serving.triton.repository import GOLDEN
from shiplift.runtime.spec.images import ImageDecoder
from shiplift.runtime.spec.pipeline import PipelineMember, parse
from shiplift.runtime.store.artifacts import ArtifactStore
from tests.huggingface import png_header
from tests.unit.examples import Golden

NORMAL = ImageDecoder(
    resize=256, crop=224, layout="NCHW", scale=1 / 255, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)
)
PLAIN = ImageDecoder(resize=(64, 48))
GRAY = ImageDecoder(resize=(32, 32), colors="gray", mean=(127.5,), std=(127.5,), filter="nearest")
DECODERS = [PLAIN, NORMAL, GRAY, ImageDecoder(resize=(7, 300), colors="BGR", filter="lanczos", draft=True)]
PIPELINE = """
name: seen
inputs: {photo: {datatype: UINT8, shape: [1, -1]}}
outputs: {pixels: {datatype: UINT8, shape: [1, 64, 48, 3]}}
members: {decode: {image: {resize: [64, 48]}}}
steps:
  decode: {member: decode, inputs: {image: photo}, outputs: {pixels: pixels}}
"""


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore((tmp_path / "artifacts").as_uri())


def answered(body: bytes, decoder: ImageDecoder) -> Any:
    settings = decoder_settings(decoder)
    return normalized(decoded(body, settings), settings)[None]


def file(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    body = io.BytesIO()
    image.save(body, kind, **options)
    return body.getvalue()


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


# --- what is decoded ---


@given(
    width=st.integers(1, 90),
    height=st.integers(1, 90),
    kind=st.sampled_from(["PNG", "JPEG"]),
    how=st.sampled_from(["nearest", "bilinear", "bicubic", "lanczos"]),
    seed=st.integers(0, 9),
)
def test_pixels_are_what_pillow_makes_of_the_file(width: int, height: int, kind: str, how: Any, seed: int) -> None:
    body = file(noise(width, height, seed), kind)
    expected = np.asarray(Image.open(io.BytesIO(body)).convert("RGB").resize((48, 64), Image.Resampling[how.upper()]))
    np.testing.assert_array_equal(answered(body, ImageDecoder(resize=(64, 48), filter=how))[0], expected)


@pytest.mark.parametrize("decoder", DECODERS)
def test_the_golden_image_has_the_same_pixels_in_every_decoder(decoder: ImageDecoder) -> None:
    case = golden(decoder)
    pixels = answered(case["input/image"].tobytes(), decoder)
    assert (pixels.shape, pixels.dtype) == (decoder.shape, np.float32 if decoder.datatype == "FP32" else np.uint8)
    np.testing.assert_allclose(pixels, case["output/pixels"], rtol=1e-6)


def test_colors_layout_and_normalization_are_as_asked() -> None:
    body = file(noise(20, 10))
    rgb = answered(body, ImageDecoder(resize=(10, 20)))[0].astype(np.float32)
    bgr = answered(body, ImageDecoder(resize=(10, 20), colors="BGR"))[0]
    np.testing.assert_array_equal(bgr, rgb[:, :, ::-1])
    means, deviations = (0.4, 0.5, 0.6), (0.2, 0.3, 0.1)
    normal = ImageDecoder(resize=(10, 20), layout="NCHW", scale=1 / 255, mean=means, std=deviations)
    expected = ((rgb / 255 - means) / deviations).transpose(2, 0, 1)[None]
    np.testing.assert_allclose(answered(body, normal), expected, atol=1e-5)


def test_a_crop_keeps_the_middle_and_its_proportions() -> None:
    photo = Image.new("RGB", (90, 30), (255, 0, 0))
    photo.paste((0, 255, 0), (30, 0, 60, 30))
    cropped = answered(file(photo), ImageDecoder(resize=30, crop=30))[0]
    assert (cropped == (0, 255, 0)).all()
    stretched = answered(file(photo), ImageDecoder(resize=(30, 30)))[0]
    assert (stretched[:, 0] == (255, 0, 0)).all()


def test_a_photograph_stands_upright() -> None:
    photo, exif = noise(40, 20), Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    turned = answered(file(photo, exif=exif), ImageDecoder(resize=(40, 20)))[0]
    np.testing.assert_array_equal(turned, np.asarray(photo.rotate(-90, expand=True)))


def test_a_draft_is_nearly_the_same_picture() -> None:
    smooth = noise(20, 12).resize((1280, 720), Image.Resampling.BICUBIC)
    body = file(smooth, "JPEG")
    whole, draft = (
        answered(body, ImageDecoder(resize=(90, 160), draft=draft))[0].astype(int) for draft in (False, True)
    )
    assert 0 < np.abs(whole - draft).mean() < 2


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not a JPEG or PNG file"),
        (b"GIF89a" + bytes(50), "not a JPEG or PNG file"),
        (file(noise(9, 9), "BMP"), "not a JPEG or PNG file"),
        (file(noise(60, 60), "JPEG")[:700], "can't be decoded"),
        (file(noise(60, 60))[:-300], "can't be decoded"),
        (png_header(50_000, 50_000), r"50000 x 50000 pixels, the limit is 32000000 \(`max_megapixels`\)"),
        (bytes((64 << 20) + 1), "67108865 bytes, the limit is 67108864"),
        (file(Image.new("1", (1, 30_000))), "1920000 pixels along its longer edge, the limit is 500000"),
    ],
    ids=["empty", "gif", "bmp", "cut jpeg", "cut png", "bomb", "huge", "thread"],
)
def test_a_file_that_is_not_an_image_or_too_large_is_refused_with_the_reason(body: bytes, message: str) -> None:
    with pytest.raises(BadImage, match=message):
        answered(body, ImageDecoder(resize=64, crop=64))


# --- as members ---


def test_a_decoder_is_a_member_that_is_never_registered(store: ArtifactStore, tmp_path: Path) -> None:
    def find(member: PipelineMember) -> Package | Unusable:
        raise AssertionError(member)

    written = parse(PIPELINE)
    packages = members_of(written.spec, find, store)
    checked = check(written, packages, {})
    assert (checked.problems, checked.way) == ((), "ensemble")
    models = write_bundle(tmp_path / "bundle", written.spec, checked, {}, store)
    (member,) = [name for name in models if name.startswith("image")]
    assert {file.name for file in (tmp_path / "bundle" / member / "1").iterdir()} == {
        "model.py",
        "front.py",
        "encoded.py",
    }
    (package,) = packages.values()
    assert isinstance(package, Package)
    assert load_npz(store.read_from_tree(package.repository, GOLDEN)).keys() == {"input/image", "output/pixels"}
    assert graph.ensemble(written.spec, checked).ensemble_scheduling.step[0].model_name == member


def test_equal_decoders_are_one_model_and_others_are_not(store: ArtifactStore) -> None:
    first, second, other = (decoder_package(decoder, None, store) for decoder in (PLAIN, PLAIN, NORMAL))
    assert first == second
    assert first.model != other.model


def test_the_configurations_are_the_ones_promised(store: ArtifactStore, golden: Golden) -> None:
    golden("pipeline.image.bundled.config.pbtxt", render(decoders.bundled_config("image", NORMAL)))
    golden("pipeline.image.nvidia.config.pbtxt", render(dali_config("image", NORMAL)))
    golden("pipeline.image.dali.txt", dali_source(NORMAL, gpu=True))
    golden("pipeline.image.dali.cpu.txt", dali_source(PLAIN, gpu=False))


def test_beside_members_for_nvidia_s_image_dali_decodes(store: ArtifactStore) -> None:
    bundled = decoder_package(PLAIN, None, store)
    beside = bundled.model_copy(update={"server": "nvidia", "target": "gpu", "nodes": Nodes(gpus=1)})
    package = decoder_package(PLAIN, beside, store)
    assert (package.server, package.target, package.nodes.gpus) == ("nvidia", "gpu", 1)
    source = store.read_from_tree(package.repository, f"{serving_name(package.model)}/1/dali.py").decode()
    assert 'device="mixed"' in source
    ast.parse(source)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "resize"),
        ({"resize": [0, 4]}, "greater than or equal to 1"),
        ({"resize": [4, 9000]}, "less than or equal to 8192"),
        ({"resize": [4, 4], "mean": [0.5]}, "`mean` has 1 numbers, and RGB has 3 channels"),
        ({"resize": [4, 4], "colors": "gray", "std": [1, 1, 1]}, "`std` has 3 numbers, and gray has 1 channels"),
        ({"resize": [4, 4], "std": [0, 1, 1]}, "greater than 0"),
        ({"resize": [4, 4], "scale": float("inf")}, "finite"),
        ({"resize": 256}, "`resize` with one number leaves images of any size"),
        ({"resize": 256, "crop": True}, "crop"),
    ],
)
def test_a_decoder_that_makes_no_sense_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ImageDecoder.model_validate(fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "needs a `model`, or an `image` decoder"),
        ({"model": "m", "image": {"resize": [4, 4]}}, "needs a `model`, or an `image` decoder"),
        ({"image": {"resize": [4, 4]}, "version": 3, "follow": "pinned"}, "`follow` is for registered models"),
    ],
)
def test_a_member_is_a_model_or_a_decoder(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        PipelineMember.model_validate(fields)


@pytest.mark.parametrize("decoder", [PLAIN, NORMAL, GRAY])
def test_dali_s_pixels_are_nearly_pillow_s(tmp_path: Path, decoder: ImageDecoder) -> None:
    """Where DALI is installed (`nvidia-dali-cuda120` decodes on CPUs, too): what NVIDIA's image makes of a file."""
    pytest.importorskip("nvidia.dali")
    source = tmp_path / "dali_model.py"
    source.write_text(dali_source(decoder, gpu=False).replace("@autoserialize\n", ""))
    spec = importlib.util.spec_from_file_location("dali_model", source)
    assert spec is not None
    assert spec.loader is not None
    model = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(model)
    files = [file(noise(w // 9, h // 9).resize((w, h), Image.Resampling.BICUBIC)) for w, h in ((640, 480), (300, 401))]
    pipeline = model.decoded()
    pipeline.build()
    pipeline.feed_input("image", [np.frombuffer(body, np.uint8) for body in files * 16])
    (pixels,) = pipeline.run()
    spread = 1.0 if decoder.datatype == "UINT8" else 1 / 128
    for at, body in enumerate(files):
        actual, expected = np.array(pixels[at]), answered(body, decoder)[0]
        assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
        assert np.abs(actual.astype(float) - expected).mean() < 4 * spread
