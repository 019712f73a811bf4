"""Images around a graph: pixels are those of the image processor, and other files are refused before they cost time."""

import base64
import json
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shiplift.runtime.admission.examples import missing_example
from shiplift.runtime.base.errors import DataInvalid, ExportFailed
from shiplift.runtime.model.contracts import read_model
from shiplift.runtime.model.text.comparing import text_difference
from shiplift.runtime.model.text.fronts import load_front
from shiplift.runtime.model.text.samples import tokenized
from shiplift.runtime.records.tensor import TensorSpec
from tests.huggingface import image_file, png_header

pytest.importorskip("PIL")
pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="the `transformers` extra is not installed")
SETTINGS = {
    "task": "image-classification",
    "inputs": ["input"],
    "labels": ["ship", "crane", "quay"],
    "top": 2,
    "max_pixels": 1_000_000,
    "resize": [32, 24],
    "filter": 2,
    "crop": None,
    "scale": 1 / 255,
    "mean": [0.5, 0.4, 0.3],
    "std": [0.5, 0.6, 0.7],
}


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
@settings(max_examples=settings().max_examples // 2)  # for each of the settings above
@given(
    width=st.integers(1, 90),
    height=st.integers(1, 90),
    kind=st.sampled_from(["JPEG", "PNG"]),
    mode=st.sampled_from(["RGB", "L"]),
)
def test_the_pixels_are_those_of_the_image_processor(
    tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any], width: int, height: int, kind: str, mode: str
) -> None:
    from transformers.image_utils import load_image

    from shiplift.runtime.model.conversion.huggingface_images import _preprocessing

    original = processor(**changes)
    around = front(tmp_path_factory.mktemp("front"), **_preprocessing(original))
    body = image_file(width, height, kind, mode)
    expected = original(images=load_image(base64.b64encode(body).decode()), return_tensors="np")["pixel_values"]
    for sent in (body, base64.b64encode(body), base64.encodebytes(body).decode()):
        actual = around.feeds(around.encode(around.read([sent])))["pixel_values"]
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
        (b"no image", "not a JPEG or PNG file, nor base64 of one"),
        ("\ud800", "not a JPEG or PNG file"),
        (base64.b64encode(b"no image"), "not a JPEG or PNG file"),
        (b"GIF89a" + bytes(100), "not a JPEG or PNG file"),
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
    with pytest.raises(DataInvalid, match="has a sample that the model can't take: the input is not a JPEG"):
        tokenized({"input": np.array(["x"])}, None, tmp_path, "validation.npz")


DETECTION = {
    "task": "object-detection",
    "labels": ["ship", "crane"],
    "threshold": 0.5,
    "resize": [16, 16],
    "top": 9,
}
PROBABILITIES = np.array([[0.1, 0.6], [0.9, 0.8], [0.2, 0.5]], np.float32)  # of three boxes
BOXES = np.array([[0, 0, 0.5, 0.5], [0.25, 0.1, 0.999, 1.05], [-0.2, 0, 0.1, 0.1]], np.float32)


def objects(folder: Path, **changes: Any) -> list[Any]:
    around = front(folder, **DETECTION | changes)
    (answer,) = around.run(
        [image_file(40, 20)], lambda feeds: {"probabilities": PROBABILITIES[None], "boxes": BOXES[None]}
    )["objects"]
    return [(each["label"], round(each["score"], 2), list(each["box"].values())) for each in json.loads(answer[0])]


def test_objects_are_each_box_s_best_class_above_the_threshold_in_pixels_of_the_image_sent(tmp_path: Path) -> None:
    assert objects(tmp_path, ranked=False) == [("crane", 0.6, [0, 0, 20, 10]), ("ship", 0.9, [10, 2, 39, 21])]


def test_or_the_best_pairs_of_a_box_and_a_class(tmp_path: Path) -> None:
    ship, crane = ("ship", 0.9, [10, 2, 39, 21]), ("crane", 0.8, [10, 2, 39, 21])
    assert objects(tmp_path, ranked=True) == [ship, crane, ("crane", 0.6, [0, 0, 20, 10])]
    assert objects(tmp_path, ranked=True, top=1) == [ship]


@pytest.mark.parametrize(("right", "distance"), [(10, 0.0), (11, 0.0), (9, 0.0), (12, math.inf), (10.0, math.inf)])
def test_corners_that_were_cut_to_whole_pixels_may_be_one_apart(right: float, distance: float) -> None:
    texts = [json.dumps([{"score": 0.5, "box": {"xmin": corner}}]) for corner in (10, right)]
    assert text_difference(np.array(texts[:1], object), np.array(texts[1:], object)) == distance
    assert text_difference(np.array(["[10]"], object), np.array(["[11]"], object)) == math.inf


def detector(kind: str, **changes: Any) -> Any:
    """Detectors of the three kinds of outputs, with random weights."""
    import torch
    import transformers as hf

    torch.manual_seed(0)
    labels = {"id2label": {0: "ship", 1: "crane"}, "label2id": {"ship": 0, "crane": 1}}
    sizes: dict[str, Any] = {
        "embedding_size": 8,
        "hidden_sizes": [8, 16, 16, 16],
        "depths": [1, 1, 1, 1],
        "layer_type": "basic",
    }
    tiny: dict[str, Any] = {
        "d_model": 32,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
        "decoder_layers": 1,
        "encoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "num_queries": 9,
        **labels,
    }
    size = {"height": 64, "width": 64}
    if kind == "yolos":
        from transformers.models.yolos.image_processing_pil_yolos import YolosImageProcessorPil as Processor

        model = hf.YolosForObjectDetection(
            hf.YolosConfig(
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=64,
                image_size=[64, 64],
                patch_size=16,
                num_detection_tokens=5,
                initializer_range=0.5,
                **labels,
            )
        )
    elif kind == "detr":
        from transformers.models.detr.image_processing_pil_detr import DetrImageProcessorPil as Processor

        model = hf.DetrForObjectDetection(
            hf.DetrConfig(
                use_timm_backbone=False,
                use_pretrained_backbone=False,
                backbone=None,
                init_std=0.5,
                backbone_config=hf.ResNetConfig(**sizes, out_features=["stage4"]),
                **tiny,
            )
        )
    else:
        from transformers.models.rt_detr.image_processing_pil_rt_detr import RTDetrImageProcessorPil as Processor

        resnet = hf.RTDetrResNetConfig(**sizes, out_features=["stage2", "stage3", "stage4"])
        model = hf.RTDetrForObjectDetection(
            hf.RTDetrConfig(
                backbone_config=resnet,
                encoder_in_channels=[16, 16, 16],
                encoder_hidden_dim=32,
                num_denoising=0,
                decoder_in_channels=[32, 32, 32],
                initializer_range=0.5,
                **tiny,
            )
        )
    return hf.pipeline("object-detection", model=model.eval(), image_processor=Processor(size=size, **changes))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["yolos", "detr", "rt-detr"])
def test_a_detector_s_graph_and_front_answer_what_its_pipeline_does(kind: str, tmp_path: Path) -> None:
    import mlflow
    import onnxruntime

    from shiplift.runtime.model.conversion.huggingface_images import HuggingFaceImages
    from shiplift.runtime.model.text.images_made import made_images

    made = detector(kind)
    mlflow.transformers.save_model(made, str(tmp_path / "model"), pip_requirements=[])
    spec = TensorSpec(name="image", datatype="BYTES", shape=(-1, 1))
    original = HuggingFaceImages(tmp_path / "model", "object-detection", (spec,), 20)
    images = [*made_images(), base64.b64encode(image_file(90, 33)).decode()]
    pixels = original.tensors({"a": {"image": np.array(images, object)}})["a"]
    graph = original.to_onnx(pixels, 18, tmp_path / "graph.onnx").SerializeToString()
    session = onnxruntime.InferenceSession(graph)
    names = [each.name for each in session.get_outputs()]
    actual = original.front.run(images, lambda feeds: dict(zip(names, session.run(names, feeds), strict=True)))
    expected = original.expected(images)
    assert any(json.loads(text) for text in expected["objects"].reshape(-1)), "no object: the test would prove nothing"
    assert text_difference(actual["objects"], expected["objects"]) < 1e-4


def test_a_detector_whose_images_keep_their_shape_is_refused(tmp_path: Path) -> None:
    import mlflow

    from shiplift.runtime.model.conversion.huggingface_images import HuggingFaceImages

    made = detector("yolos")
    made.image_processor.size = {"shortest_edge": 64, "longest_edge": 100}
    mlflow.transformers.save_model(made, str(tmp_path / "model"), pip_requirements=[])
    spec = TensorSpec(name="image", datatype="BYTES", shape=(-1, 1))
    with pytest.raises(ExportFailed, match=r"resizes to .*shortest_edge.*, which is not supported"):
        HuggingFaceImages(tmp_path / "model", "object-detection", (spec,), 20)


@pytest.mark.parametrize("kind", ["ImageClassificationPipeline", "ObjectDetectionPipeline"])
def test_a_version_without_example_images_is_asked_our_own(tmp_path: Path, kind: str) -> None:
    meta = {"flavors": {"transformers": {"instance_type": kind}}, "signature": {"inputs": '[{"type": "string"}]'}}
    (tmp_path / "MLmodel").write_text(json.dumps(meta))
    example, note = missing_example(tmp_path, read_model(tmp_path))
    (images,) = example.values()
    assert len(front(tmp_path).read(list(images.reshape(-1)))) == len(images)
    assert "Shiplift's own images" in note
