"""Images around a graph: pixels are those of the image processor, and what is no image is refused before it costs."""

import base64
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shiplift.runtime.admission.examples import missing_example
from shiplift.runtime.base.errors import DataInvalid, ExportFailed, NotAdmitted
from shiplift.runtime.model.contracts import read_model
from shiplift.runtime.model.text.fronts import load_front
from shiplift.runtime.model.text.samples import tokenized
from tests.huggingface import image_file, png_header

pytest.importorskip("PIL")
pytest.importorskip("transformers")
SETTINGS = {
    "task": "image-classification", "inputs": ["input"], "labels": ["ship", "crane", "quay"], "top": 2,
    "max_pixels": 1_000_000, "resize": [32, 24], "filter": 2, "crop": None, "scale": 1 / 255, "mean": [0.5, 0.4, 0.3],
    "std": [0.5, 0.6, 0.7],
}  # fmt: skip


def front(folder: Path, **changes: Any) -> Any:
    (folder / "image.json").write_text(json.dumps(SETTINGS | changes))
    return load_front(folder)[0]


def processor(**changes: Any) -> Any:
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    return ViTImageProcessorPil(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"size": {"height": 32, "width": 24}},
        {"size": {"height": 32, "width": 32}, "resample": 3, "image_mean": 0.25, "image_std": [0.2, 0.3, 0.4]},
        {"size": {"shortest_edge": 40}, "do_center_crop": True, "crop_size": {"height": 32, "width": 32}},
        {"do_resize": False, "do_center_crop": True, "crop_size": {"height": 48, "width": 31}, "do_normalize": False},
        {"size": {"height": 16, "width": 16}, "do_rescale": False},
    ],
)
@given(width=st.integers(1, 90), height=st.integers(1, 90), kind=st.sampled_from(["JPEG", "PNG"]),
       mode=st.sampled_from(["RGB", "L"]))  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_the_pixels_are_those_of_the_image_processor(
    tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any], width: int, height: int, kind: str, mode: str
) -> None:
    from transformers.image_utils import load_image

    from shiplift.runtime.model.conversion.huggingface_images import HuggingFaceImages

    original = processor(**changes)
    made = object.__new__(HuggingFaceImages)
    made.processor, made.name, made.max_pixels = original, "input", 1_000_000
    made.model = SimpleNamespace(config=SimpleNamespace(id2label={0: "a", 1: "b"}, num_labels=2))
    made.settings = made._settings()
    body = image_file(width, height, kind, mode)
    expected = original(images=load_image(base64.b64encode(body).decode()), return_tensors="np")["pixel_values"]
    for sent in (body, base64.b64encode(body), base64.encodebytes(body).decode()):
        actual = made.front.feeds(made.front.encode(made.front.read([sent])))["pixel_values"]
        np.testing.assert_array_equal(actual, expected)
        assert actual.dtype == np.float32


def test_a_processor_with_steps_of_its_own_is_refused() -> None:
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    from shiplift.runtime.model.conversion.huggingface_images import _check_processor

    class Own(ViTImageProcessorPil):  # type: ignore[misc] # transformers has no types here
        def resize(self, *_args: Any, **_kwargs: Any) -> Any: ...

    with pytest.raises(ExportFailed, match="Own has its own `resize`"):
        _check_processor(Own())


def test_a_processor_on_torchvision_is_left_to_parity() -> None:
    from transformers.image_processing_backends import TorchvisionBackend

    from shiplift.runtime.model.conversion.huggingface_images import _check_processor

    class Plain(TorchvisionBackend):  # type: ignore[misc] # transformers has no types here
        do_pad = False

    _check_processor(object.__new__(Plain))  # an instance needs torchvision, which is not here
    with pytest.raises(ExportFailed, match="has its own `pad`"):
        _check_processor(object.__new__(type("Padding", (Plain,), {"do_pad": True})))


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (b"", "has 0 bytes"),
        ("", "has 0 bytes"),
        (b"no image", "no JPEG or PNG file, and no base64 of one"),
        ("\ud800", "no JPEG or PNG file"),
        (base64.b64encode(b"no image"), "no JPEG or PNG file"),
        (b"GIF89a" + bytes(100), "no JPEG or PNG file"),
        (image_file(60, 60)[:900], "can't be decoded: image file is truncated"),
        (image_file(60, 60, "PNG")[:900], "can't be decoded"),
        (b"\xff\xd8\xff" + bytes(50), "can't be decoded: its header is damaged"),
        (png_header(50_000, 50_000), "has 50000 x 50000 pixels, the limit is 1000000"),
        (png_header(30, 30), "can't be decoded"),
        (b"\xff\xd8\xff" + bytes(17 << 20), "has 17825795 bytes, the limit is 16777216"),
    ],
)
def test_what_is_no_image_is_refused_with_the_reason(tmp_path: Path, item: Any, reason: str) -> None:
    (tmp_path / "image.json").write_text(json.dumps(SETTINGS))
    around, refused = load_front(tmp_path)
    with pytest.raises(refused, match=reason):
        around.run([item], lambda feeds: {})


def test_a_line_that_would_become_a_huge_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "image.json").write_text(json.dumps(SETTINGS | {"resize": 224, "crop": [224, 224]}))
    around, refused = load_front(tmp_path)
    with pytest.raises(refused, match="resized to 1120000 pixels along its longer edge, the limit is 4464"):
        around.read([image_file(5000, 1, "PNG")])


@given(body=st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_no_bytes_end_in_another_error(tmp_path_factory: pytest.TempPathFactory, body: bytes) -> None:
    folder = tmp_path_factory.getbasetemp() / "fuzzed"
    folder.mkdir(exist_ok=True)
    (folder / "image.json").write_text(json.dumps(SETTINGS))
    around, refused = load_front(folder)
    for start in (b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", image_file(9, 9)[:150], image_file(9, 9, "PNG")[:60]):
        try:
            around.read([start + body])
        except refused:
            continue


def test_the_best_labels_are_answered_highest_first_to_each_request(tmp_path: Path) -> None:
    around = front(tmp_path)
    requests = [(images, around.encode(images)) for images in (around.read([image_file(9, 9)] * n) for n in (1, 2))]
    scores = np.array([[0.2, 0.5, 0.3], [0.4, 0.2, 0.4], [0.1, 0.2, 0.7]], np.float32)
    first, second = around.split(requests, {"probabilities": scores})
    assert first["label"].tolist() == [["crane", "quay"]]
    assert second["label"].tolist() == [["ship", "quay"], ["quay", "crane"]]
    np.testing.assert_array_equal(second["score"], np.array([[0.4, 0.4], [0.7, 0.2]], np.float32))


def test_logged_images_become_pixels_and_logged_names_numbers(tmp_path: Path) -> None:
    front(tmp_path)
    images = {"input": np.array([[base64.b64encode(image_file(9, 9)).decode()]], dtype=object)}
    inputs, labels = tokenized(images, np.array(["quay"]), tmp_path, "validation.npz")
    assert inputs["pixel_values"].shape == (1, 3, 32, 24)
    assert labels is not None
    assert labels.tolist() == [2]
    with pytest.raises(DataInvalid, match="has a sample that the model can't take: the input is no JPEG"):
        tokenized({"input": np.array(["x"])}, None, tmp_path, "validation.npz")


def test_a_version_without_example_images_is_asked_for_some(tmp_path: Path) -> None:
    meta = {"flavors": {"transformers": {"instance_type": "ImageClassificationPipeline"}},
            "signature": {"inputs": '[{"type": "string"}]'}}  # fmt: skip
    (tmp_path / "MLmodel").write_text(json.dumps(meta))
    with pytest.raises(NotAdmitted, match="takes images") as error:
        missing_example(tmp_path, read_model(tmp_path))
    assert "base64" in error.value.do
