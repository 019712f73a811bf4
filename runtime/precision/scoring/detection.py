"""The score of object detectors: COCO's mean average precision, by pycocotools.

Boxes are matched once per image, which takes most of the time. The score of any set of images follows from the matches.
"""

import contextlib
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.precision.scoring.bootstrap import Rows
from shiplift.runtime.precision.scoring.task_metric import Mismatch, TaskMetric, library

_BOXES = (
    "the outputs `boxes` (floats, (samples, boxes, 4): left, top, right, bottom), `scores` (floats, (samples, boxes)) "
    "and `labels` (integers, (samples, boxes)), and as labels (samples, boxes, 5): left, top, right, bottom, class, "
    "where a negative class is padding"
)
_MOST_BOXES = 100  # of an image, by COCO's rules: those with the highest scores
_ALL_SIZES = [[0, 1e5**2]]


def _matches(outputs: Arrays, labels: NDArray[Any]) -> Rows:
    """Each image's matches: an object array of one list per sample, with an entry per class."""
    boxes, scores, classes = _predicted(outputs, labels)
    expected = labels.astype(np.float64)
    kinds = np.unique(expected[..., 4][expected[..., 4] >= 0]).astype(np.int64).tolist()
    truth = {
        "images": [{"id": image} for image in range(len(boxes))],
        "categories": [{"id": kind} for kind in kinds],
        "annotations": [
            {
                "id": number,
                "iscrowd": 0,
                "area": float(box[2] * box[3]),
                "image_id": image,
                "category_id": kind,
                "bbox": box.tolist(),
            }
            for number, (image, box, kind) in enumerate(_listed(expected[..., :4], expected[..., 4]), 1)
        ],
    }
    guesses = [
        {"image_id": image, "category_id": kind, "bbox": box.tolist(), "score": float(scores[image][at])}
        for image in range(len(boxes))
        for at, box, kind in _of_image(boxes[image], classes[image])
        if kind in kinds
    ]
    return (_matched(truth, guesses, len(boxes), len(kinds)),)


def _predicted(outputs: Arrays, labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    try:
        boxes, scores, classes = (outputs[name] for name in ("boxes", "scores", "labels"))
    except KeyError as error:
        raise Mismatch(f"there is no output {error}") from error
    fits = boxes.ndim == 3 and boxes.shape[2] == 4 and scores.shape == classes.shape == boxes.shape[:2]
    kinds = boxes.dtype.kind + scores.dtype.kind == "ff" and classes.dtype.kind in "iuf" and labels.dtype.kind in "iuf"
    if not fits or not kinds or labels.ndim != 3 or labels.shape[2] != 5 or len(labels) != len(boxes):
        raise Mismatch
    return boxes.astype(np.float64), scores, classes


def _of_image(corners: NDArray[Any], classes: NDArray[Any]) -> list[tuple[int, NDArray[Any], int]]:
    """The boxes of an image without padding, as left, top, width and height, with their index and class."""
    sized = np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], axis=1)
    return [(at, box, int(kind)) for at, (box, kind) in enumerate(zip(sized, classes, strict=True)) if kind >= 0]


def _listed(corners: NDArray[Any], classes: NDArray[Any]) -> list[tuple[int, NDArray[Any], int]]:
    return [
        (image, box, kind)
        for image in range(len(corners))
        for _, box, kind in _of_image(corners[image], classes[image])
    ]


def _matched(truth: dict[str, Any], guesses: list[dict[str, Any]], images: int, classes: int) -> NDArray[Any]:
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints its progress
        dataset = library("pycocotools.coco").COCO()
        dataset.dataset = truth
        dataset.createIndex()
        found = library("pycocotools.coco").COCO()
        found.dataset = {
            **truth,
            "annotations": [
                {**guess, "id": number, "area": guess["bbox"][2] * guess["bbox"][3], "iscrowd": 0}
                for number, guess in enumerate(guesses, 1)
            ],
        }
        found.createIndex()
        evaluation = _evaluation(dataset, found)
        evaluation.evaluate()
    by_image = np.empty(images, dtype=object)
    for image in range(images):
        by_image[image] = [evaluation.evalImgs[kind * images + image] for kind in range(classes)]
    return by_image


def _evaluation(dataset: Any, found: Any) -> Any:
    evaluation = library("pycocotools.cocoeval").COCOeval(dataset, found, "bbox")
    evaluation.params.areaRng, evaluation.params.areaRngLbl = _ALL_SIZES, ["all"]
    evaluation.params.maxDets = [_MOST_BOXES]
    return evaluation


def _mean_average_precision(images: NDArray[Any]) -> float:
    classes = len(images[0])
    if not classes:
        return float("nan")
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation = _evaluation(None, None)
        evaluation.params.imgIds, evaluation.params.catIds = list(range(len(images))), list(range(classes))
        evaluation._paramsEval = evaluation.params  # `accumulate` reads what `evaluate` would have set
        evaluation.evalImgs = [image[kind] for kind in range(classes) for image in images]
        evaluation.accumulate()
    precision = evaluation.eval["precision"]
    known = precision[precision > -1]
    return float(known.mean()) if known.size else float("nan")


MEAN_AVERAGE_PRECISION = TaskMetric(takes=_BOXES, rows=_matches, score=_mean_average_precision, most_rows=500)
