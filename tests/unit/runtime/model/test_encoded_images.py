"""`export.preprocess`: a model of pixels behind the decoding of files, and models that it does not fit."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image
from pydantic import ValidationError

from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.model.conversion.encoded_images import EncodedImages
from shiplift.runtime.model.conversion.original import Original
from shiplift.runtime.model.tensors import Arrays, load_npz
from shiplift.runtime.model.text.fronts import front_file, load_front, takes_images
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.spec.images import Pixels
from shiplift.runtime.spec.model import Conversion
from tests.huggingface import image_file
from tests.unit.examples import tensor

NORMAL = Pixels(resize=32, crop=24, scale=1 / 255, mean=(0.5, 0.4, 0.3), std=(0.5, 0.6, 0.7))
PLAIN = Pixels(resize=(24, 24))
MEANS = Signature(inputs=(tensor("pixels", -1, 3, 24, 24),), outputs=(tensor("means", -1, 3),))


class Means(Original):
    """The mean of each channel."""

    notes = ("a note",)

    def answer(self, inputs: Arrays) -> Arrays:
        (pixels,) = inputs.values()
        return {"means": pixels.mean(axis=(2, 3) if pixels.shape[1] == 3 else (1, 2))}

    def to_onnx(self, example: Arrays, opset: int, path: Path) -> onnx.ModelProto:
        raise NotImplementedError


def encoded(spec: TensorSpec, pixels: Pixels) -> EncodedImages:
    return EncodedImages(Means(), (spec,), pixels, 32, finished=lambda behind, inputs: behind.answer(inputs))


@pytest.mark.parametrize(
    ("spec", "pixels", "layout"),
    [
        (tensor("pixels", -1, 3, 24, 24), NORMAL, "NCHW"),
        (tensor("pixels", -1, 3, -1, -1), NORMAL, "NCHW"),
        (tensor("pixels", -1, 24, 24, 3), NORMAL, "NHWC"),
        (TensorSpec(name="pixels", datatype="UINT8", shape=(-1, 24, 24, 3)), PLAIN, "NHWC"),
        (TensorSpec(name="pixels", datatype="FP16", shape=(-1, 3, 24, 24)), NORMAL, "NCHW"),
    ],
)
def test_the_right_answers_are_the_model_s_to_what_pillow_makes_of_a_file(
    tmp_path: Path, spec: TensorSpec, pixels: Pixels, layout: str
) -> None:
    made = encoded(spec, pixels)
    assert made.notes == ("a note",)
    seen = made.write_text({}, tmp_path, MEANS)
    assert seen.inputs == (TensorSpec(name="pixels", datatype="BYTES", shape=(-1, 1)),)
    assert seen.outputs == MEANS.outputs
    folder = tmp_path / "text"
    assert (front_file(folder), takes_images(folder)) == ("pixel_front.py", True)
    assert json.loads((folder / "pixels.json").read_text())["layout"] == layout
    arrays, (front, _) = load_npz(tmp_path / "texts.npz"), load_front(folder)
    images = front.samples({"pixels": arrays["input/pixels"]})
    assert len(images) >= 3
    for image, expected in zip(images, arrays["output/means"], strict=True):
        photo = Image.open(io.BytesIO(base64.b64decode(image))).convert("RGB")
        if pixels is PLAIN:
            right = np.asarray(photo.resize((24, 24), Image.Resampling.BILINEAR)).mean(axis=(0, 1))
        else:
            short = min(photo.size)
            size = int(32 * photo.width / short), int(32 * photo.height / short)
            photo = photo.resize(size, Image.Resampling.BILINEAR)
            left, top = round((photo.width - 24) / 2), round((photo.height - 24) / 2)
            cut = np.asarray(photo.crop((left, top, left + 24, top + 24))).mean(axis=(0, 1)) / 255
            right = (cut - NORMAL.mean) / NORMAL.std
        np.testing.assert_allclose(expected, right, rtol=5e-3, atol=5e-3)


def test_a_request_is_files_or_base64_of_them(tmp_path: Path) -> None:
    encoded(tensor("pixels", -1, 3, 24, 24), NORMAL).write_text({}, tmp_path, MEANS)
    front, refused = load_front(tmp_path / "text")
    file = image_file(40, 50)
    answers = [
        front.run([sent], lambda feeds: Means().answer(feeds))["means"]
        for sent in (file, base64.b64encode(file), base64.encodebytes(file).decode())
    ]
    np.testing.assert_array_equal(answers[0], answers[1])
    np.testing.assert_array_equal(answers[0], answers[2])
    for bad, why in ((b"", "not a JPEG or PNG"), ("no image", "nor base64 of one"), (file[:-200], "truncated")):
        with pytest.raises(refused, match=why):
            front.read([bad])


@pytest.mark.parametrize(
    ("inputs", "pixels", "message"),
    [
        ((tensor("x", -1, 10),), PLAIN, r"one input of four dimensions, this one takes x FP32\[-1, 10\]"),
        ((tensor("x", -1, 3, 24, 24), tensor("y", -1, 3, 24, 24)), PLAIN, "takes x FP32.*, y FP32"),
        ((TensorSpec(name="x", datatype="INT64", shape=(-1, 3, 24, 24)),), PLAIN, "takes x INT64"),
        (
            (tensor("x", -1, 3, 32, 32),),
            PLAIN,
            r"24 x 24 pixels with 3 channels.*the shape \[-1, 3, 32, 32\]",
        ),
        ((tensor("x", -1, 1, 24, 24),), PLAIN, "3 channels"),
        ((TensorSpec(name="x", datatype="UINT8", shape=(-1, 3, 24, 24)),), NORMAL, "UINT8, and .* changes the numbers"),
    ],
)
def test_a_model_that_takes_no_such_images_is_refused_with_the_reason(
    inputs: tuple[Any, ...], pixels: Pixels, message: str
) -> None:
    with pytest.raises(ExportFailed, match=message):
        EncodedImages(Means(), inputs, pixels, 32, finished=lambda behind, asked: behind.answer(asked))


def test_torchscript_decodes_no_images() -> None:
    with pytest.raises(ValidationError, match="leave out `preprocess`"):
        Conversion(torchscript=True, preprocess=PLAIN)
