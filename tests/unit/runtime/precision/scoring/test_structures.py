"""Texts, masks and boxes: the values of the libraries' documentation, and of the libraries themselves."""

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from shiplift.runtime.base.errors import DataInvalid
from shiplift.runtime.precision.scoring import metrics


@functools.cache
def sklearn() -> Any:
    """Imported by the tests that compare: it takes a second."""
    return pytest.importorskip("sklearn.metrics")


def texts(*items: str) -> NDArray[Any]:
    return np.array(items, dtype=object)


# --- texts ---

PREDICTED = texts("this is the prediction", "there is an other sample")
EXPECTED = texts("this is the reference", "there is another one")


@pytest.mark.parametrize(("metric", "value"), [("wer", 0.5), ("cer", 0.3415)])
def test_error_rates_are_those_of_torchmetrics_documentation(metric: Any, value: float) -> None:
    assert metrics.score(metric, {"text": PREDICTED}, EXPECTED).value == pytest.approx(value, abs=1e-4)
    column = {"text": PREDICTED.reshape(-1, 1)}
    assert metrics.score(metric, column, np.array(EXPECTED, dtype=str)).value == pytest.approx(value, abs=1e-4)


def test_bytes_are_texts_and_spaces_around_them_do_not_count() -> None:
    outputs = {"text": np.array([b" hello  world ", b"a"], dtype=object)}
    assert metrics.score("wer", outputs, texts("hello world", "a")).value == 0
    assert metrics.score("exact_match", {"text": texts("a ", "b")}, texts("a", "c")).value == 0.5


def test_long_answers_to_short_texts_have_a_rate_above_one() -> None:
    assert metrics.score("wer", {"text": texts("one two three")}, texts("four")).value == 3


def test_rates_count_words_not_samples() -> None:
    outputs, labels = {"text": texts("a", "b c d e f g h i j")}, texts("x", "b c d e f g h i j")
    assert metrics.score("wer", outputs, labels).value == pytest.approx(0.1)


def test_tokens_are_words_and_negative_ones_are_padding() -> None:
    outputs = {"tokens": np.array([[5, 6, 7, -1], [1, 2, -1, -1]])}
    labels = np.array([[5, 7, -100], [1, 2, 3]])
    assert metrics.score("wer", outputs, labels).value == pytest.approx(2 / 5)


def test_texts_without_a_word_have_no_rate() -> None:
    assert np.isnan(metrics.score("wer", {"text": texts("a")}, texts("")).value)


@given(st.lists(st.text(max_size=8), min_size=1, max_size=5))
def test_a_text_has_no_error_against_itself(items: list[str]) -> None:
    score = metrics.score("cer", {"text": texts(*items)}, texts(*items)).value
    assert score == 0 or (np.isnan(score) and not any(item.strip() for item in items))
    assert metrics.score("exact_match", {"text": texts(*items)}, texts(*items)).value == 1


@pytest.mark.parametrize("metric", ["wer", "cer", "exact_match"])
@pytest.mark.parametrize(
    ("output", "labels"),
    [
        (texts("a", "b"), np.array([1, 2])),
        (texts("a", "b"), texts("a")),
        (np.ones((2, 3), np.float32), texts("a", "b")),
    ],
)
def test_texts_against_something_else_are_refused_with_both_shapes(metric: Any, output: Any, labels: Any) -> None:
    with pytest.raises(DataInvalid, match=rf"metric {metric} takes .* the outputs are out \(.*\), the labels "):
        metrics.score(metric, {"out": output}, labels)


# --- whole answers ---


def test_a_sequence_is_right_if_all_that_counts_of_it_is() -> None:
    logits = np.zeros((3, 4, 5), np.float32)
    classes = np.array([[1, 2, 3, 4], [1, 2, 3, 4], [0, 0, 0, 0]])
    np.put_along_axis(logits, classes[..., None], 1, axis=2)
    labels = np.array([[1, 2, 3, 4], [1, 2, 0, 4], [0, 0, -100, -100]])
    for output in (logits, classes):
        assert metrics.score("exact_match", {"out": output}, labels).value == pytest.approx(2 / 3)


# --- masks ---

_masks = npst.arrays(np.int64, (4, 5, 6), elements=st.integers(0, 3))


@given(_masks, _masks)
def test_mean_iou_is_scikit_learn_s_jaccard_score(actual: NDArray[Any], expected: NDArray[Any]) -> None:
    theirs = sklearn().jaccard_score(expected.ravel(), actual.ravel(), average="macro")
    assert metrics.score("mean_iou", {"mask": actual}, expected).value == pytest.approx(theirs)
    scores = np.eye(4, dtype=np.float32)[actual].transpose(0, 3, 1, 2)
    assert metrics.score("mean_iou", {"logits": scores}, expected[:, None]).value == pytest.approx(theirs)


def test_pixels_without_a_class_do_not_count() -> None:
    actual = np.array([[[0, 1, 1, 0]]])
    assert metrics.score("mean_iou", {"mask": actual}, np.array([[[0, 1, 255, 0]]], np.uint8)).value == 1
    assert metrics.score("mean_iou", {"mask": actual}, np.array([[[0, 1, -1, 0]]])).value == 1


def test_masks_of_another_size_are_refused_with_both_shapes() -> None:
    outputs = {"mask": np.zeros((2, 4, 4), np.int64)}
    with pytest.raises(DataInvalid, match=r"mask \(int64 \[2, 4, 4\]\), the labels int64 \[2, 8, 8\]"):
        metrics.score("mean_iou", outputs, np.zeros((2, 8, 8), np.int64))


# --- boxes ---


def boxes(*rows: tuple[float, float, float, float], scores: list[float], labels: list[int]) -> dict[str, Any]:
    return {
        "boxes": np.array([rows], np.float32),
        "scores": np.array([scores], np.float32),
        "labels": np.array([labels]),
    }


def test_mean_average_precision_is_that_of_torchmetrics_documentation() -> None:
    outputs = boxes((258, 41, 606, 285), scores=[0.536], labels=[0])
    assert metrics.score("map", outputs, np.array([[[214, 41, 562, 285, 0]]])).value == pytest.approx(0.6)


def test_a_right_box_of_two_is_half_of_the_precision_and_padding_is_no_box() -> None:
    labels = np.array([[[0, 0, 10, 10, 1], [20, 20, 40, 40, 1], [0, 0, 0, 0, -1]]], np.float32)
    outputs = boxes((0, 0, 10, 10), (0, 0, 1, 1), scores=[0.9, 0.8], labels=[1, -1])
    assert metrics.score("map", outputs, labels).value == pytest.approx(51 / 101)  # recall 0 to 0.5, in 101 steps
    assert metrics.score("map", boxes((0, 0, 10, 10), scores=[0.9], labels=[2]), labels).value == 0


def test_images_without_any_box_have_no_precision() -> None:
    outputs = boxes((0, 0, 10, 10), scores=[0.9], labels=[1])
    assert np.isnan(metrics.score("map", outputs, np.full((1, 2, 5), -1.0)).value)


def test_resamples_of_images_spread_around_the_whole() -> None:
    rng = np.random.default_rng(0)
    corners = rng.uniform(0, 50, (60, 2, 2))
    labels = np.concatenate([corners, corners + 20, rng.integers(0, 2, (60, 2, 1))], axis=2)
    shifted = labels[..., :4] + rng.normal(0, 2, (60, 2, 4))
    outputs: dict[str, Any] = {
        "boxes": shifted.astype(np.float32),
        "scores": rng.uniform(size=(60, 2)).astype(np.float32),
        "labels": labels[..., 4].astype(np.int64),
    }
    score = metrics.score("map", outputs, labels)
    assert 0.1 < score.value < 0.9
    assert 0 < score.error < 0.1
    assert abs(np.mean(score.resamples) - score.value) < 2 * score.error


@pytest.mark.parametrize(
    ("change", "labels"),
    [
        ({"boxes": np.zeros((1, 4), np.float32)}, np.zeros((1, 1, 5))),
        ({"labels": np.zeros((1, 2), np.int64)}, np.zeros((1, 1, 5))),
        ({}, np.zeros((1, 1, 4))),
        ({}, np.zeros((2, 1, 5))),
    ],
)
def test_boxes_of_another_shape_are_refused_with_all_shapes(change: dict[str, Any], labels: NDArray[Any]) -> None:
    outputs = boxes((0, 0, 1, 1), scores=[1.0], labels=[0]) | change
    with pytest.raises(DataInvalid, match=r"metric map takes the outputs `boxes`.*scores \(float32 \[1, 1\]\)"):
        metrics.score("map", outputs, labels)


def test_a_detector_without_scores_is_told_which_output_is_missing() -> None:
    with pytest.raises(DataInvalid, match="there is no output 'scores'"):
        metrics.score("map", {"boxes": np.zeros((1, 1, 4), np.float32)}, np.zeros((1, 1, 5)))
