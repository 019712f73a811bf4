"""How much JPEG costs a model of images: pixels there and back, scores of each quality, and the gate on them."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from shiplift.runtime.gates import policy
from shiplift.runtime.gates.quality import jpeg_checks, jpeg_notes
from shiplift.runtime.guest.fronts.pixel_front import normalized
from shiplift.runtime.model.text import jpegs as images
from shiplift.runtime.precision.evaluation import Validation
from shiplift.runtime.precision.scoring import jpegs
from shiplift.runtime.records.precision import JpegScore
from shiplift.runtime.records.verdict import GateEvidence, Outcome, Scored
from shiplift.runtime.spec.groups import Requirements
from shiplift.runtime.spec.measurement import Slo
from shiplift.runtime.spec.model import Data, Quality
from shiplift.runtime.spec.rules import Policy

SIZE = 16


def settings(colors: str = "RGB", layout: str = "NCHW", datatype: str = "FP32", **numbers: Any) -> dict[str, Any]:
    return {
        "inputs": ["pixels"],
        "pixels": "pixels",
        "resize": [SIZE, SIZE],
        "crop": None,
        "filter": "bilinear",
        "colors": colors,
        "layout": layout,
        "datatype": datatype,
        "scale": None,
        "mean": None,
        "std": None,
        "draft": False,
        "max_megapixels": 32,
        **numbers,
    }


@given(
    colors=st.sampled_from(["RGB", "BGR", "gray"]),
    layout=st.sampled_from(["NCHW", "NHWC"]),
    scale=st.sampled_from([None, 1 / 255, 1 / 127.5]),
    mean=st.floats(-1, 1),
    std=st.floats(0.1, 2),
    seed=st.integers(0, 9),
)
def test_a_tensor_s_pixels_are_those_that_it_was_made_of(
    colors: str, layout: str, scale: float | None, mean: float, std: float, seed: int
) -> None:
    channels = 1 if colors == "gray" else 3
    how = settings(colors, layout, scale=scale, mean=[mean] * channels, std=[std] * channels)
    pixels = np.random.default_rng(seed).integers(0, 256, (5, 7, channels), dtype=np.uint8)
    model_s = pixels[:, :, ::-1] if colors == "BGR" else pixels
    restored = images.pixels_of_tensor(normalized(model_s, how), how)
    np.testing.assert_array_equal(restored, pixels[:, :, 0] if channels == 1 else pixels)
    np.testing.assert_array_equal(images.tensor_of(restored, how), normalized(model_s, how))


def checkerboards(count: int) -> NDArray[Any]:
    """Images whose class is how much single pixels differ: JPEG takes that away from half of them."""
    rng = np.random.default_rng(0)
    board = np.indices((SIZE, SIZE)).sum(axis=0) % 2
    strength = np.where(np.arange(count) % 2, 6, 60)
    noise = rng.integers(0, 2, (count, SIZE, SIZE))
    gray = 100 + board[None] * strength[:, None, None] + noise
    return np.repeat(gray[..., None], 3, axis=-1).astype(np.uint8)


def contrast(feeds: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """A model: class 1 where neighbours differ by more than 3."""
    pixels = feeds["pixels"].astype(np.float64)
    difference = np.abs(np.diff(pixels.mean(axis=1), axis=2)).mean(axis=(1, 2))
    return {"scores": np.stack([3 - difference, difference - 3], axis=1).astype(np.float32)}


def front(folder: Path, **changed: Any) -> Path:
    (folder / "pixels.json").write_text(json.dumps(settings(**changed)))
    return folder


def validation(count: int) -> Validation:
    return Validation(metric="accuracy", asked={}, reference={}, inputs={}, labels=np.ones(count, np.int64))


def as_png(pixels: NDArray[Any]) -> bytes:
    body = io.BytesIO()
    Image.fromarray(pixels).save(body, "PNG")
    return body.getvalue()


@pytest.mark.parametrize("as_files", [True, False])
def test_images_are_scored_as_they_are_and_as_files_of_each_quality(tmp_path: Path, as_files: bool) -> None:
    boards, folder = checkerboards(40), front(tmp_path)
    tensors = np.stack([normalized(board, settings()) for board in boards])
    logged = (
        jpegs.ValidationImages(front=folder, files=[as_png(board) for board in boards])
        if as_files
        else jpegs.ValidationImages(front=folder, tensors=tensors)
    )
    plain, fine, coarse = jpegs.scores(logged, [95, 10], validation(40), contrast)
    assert (plain.quality, plain.score, plain.image_bytes) == (None, 1.0, SIZE * SIZE * 3)
    assert fine.score == 1.0
    assert coarse.score == 0.5, "of weak contrasts nothing is left"
    assert fine.image_bytes > coarse.image_bytes > 100
    assert len(plain.resamples) == len(coarse.resamples) > 0, "so that they can be paired"


def test_of_many_images_a_thousand_are_scored_evenly_spread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jpegs, "_MOST", 10)
    tensors = np.stack([normalized(board, settings()) for board in checkerboards(41)])
    (plain, _) = jpegs.scores(
        jpegs.ValidationImages(front=front(tmp_path), tensors=tensors), [90], validation(41), contrast
    )
    assert plain.samples == 10


# --- the gate ---


def scored(**drops: float) -> Scored:
    """Scores of 0.9 on the images as they are, and less on files (`q75=0.02`)."""
    hits = np.arange(500) < 450
    rng = np.random.default_rng(1)
    picks = rng.integers(0, 500, (200, 500))

    def jpeg(quality: int | None, drop: float) -> JpegScore:
        right = hits & (np.arange(500) >= 500 * drop)
        resamples = tuple(float(right[pick].mean()) for pick in picks)
        size = 3000.0 if quality is None else 10.0 * quality
        return JpegScore(quality=quality, score=float(right.mean()), resamples=resamples, samples=500, image_bytes=size)

    files = (jpeg(int(name[1:]), drop) for name, drop in drops.items())
    return Scored(version=2, target="local-cpu", metric="accuracy", score=0.9, jpegs=(jpeg(None, 0), *files))


def test_a_quality_that_costs_too_much_fails_by_its_name() -> None:
    fine, coarse = jpeg_checks(scored(q95=0.0, q30=0.1), Quality(max_jpeg_drop=0.02))
    assert (fine.name, fine.verdict) == ("accuracy as JPEG 95", Outcome.PASS)
    assert (coarse.name, coarse.verdict, coarse.measured) == ("accuracy as JPEG 30", Outcome.FAIL, 0.1)
    assert "accuracy 0.8000 is 0.1000" in coarse.reason
    assert coarse.reason.endswith("the limit is 0.02")
    assert "`quality.max_jpeg_drop`" in coarse.do


def test_a_loss_that_the_images_can_t_decide_passes_or_not_as_the_spec_says() -> None:
    (undecided,) = jpeg_checks(scored(q75=0.012), Quality(max_jpeg_drop=0.01))
    assert undecided.verdict is Outcome.INCONCLUSIVE
    assert "more would" in undecided.reason
    (passed,) = jpeg_checks(scored(q75=0.004), Quality(max_jpeg_drop=0.01))
    assert passed.verdict is Outcome.PASS
    (held,) = jpeg_checks(scored(q75=0.004), Quality(max_jpeg_drop=0.005, judge_by="interval"))
    assert held.verdict is not Outcome.PASS


def test_the_verdict_has_these_checks_and_without_qualities_there_are_none() -> None:
    limits = Requirements(quality=Quality(), data=Data(), slo=Slo(), policy=Policy())
    names = [check.name for check in policy.judge(GateEvidence(parity=(), challenger=scored(q95=0.0)), limits)]
    assert "accuracy as JPEG 95" in names
    assert jpeg_checks(Scored(version=2, target="local-cpu"), Quality()) == ()


def test_a_note_tells_what_each_quality_saves() -> None:
    assert list(jpeg_notes(scored(q75=0.0).jpegs)) == ["as JPEG 75 an image has 0.8 kB, 25 % of its 3.0 kB of pixels"]
    assert list(jpeg_notes(())) == []
