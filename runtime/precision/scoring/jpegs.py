"""How much JPEG costs a model of images: its score on the original validation images, and on files of each quality.

All scores are of the model in fp32 and on the same images, so their differences are paired. Clients decide what they
send; these figures tell them what they can afford.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.base.progress import progress
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.model.text import fronts, jpegs
from shiplift.runtime.precision.evaluation import Validation
from shiplift.runtime.records.precision import JpegScore

_MOST = 1000  # images: each is encoded, decoded and answered once for each quality
_AT_ONCE = 32
_Answer = Callable[[Arrays], Arrays]


@dataclass(frozen=True, kw_only=True)
class ValidationImages:
    """Validation images: `files`, JPEG or PNG, or else the model's own `tensors`; and the folder of the model's front.

    Tensors are of shape (images, ...), as the graph takes them.
    """

    front: Path
    files: Sequence[bytes] = ()
    tensors: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.files) if self.tensors is None else len(self.tensors)


def no_images() -> SpecInvalid:
    """The error for JPEG qualities of a model that takes no images."""
    return SpecInvalid(
        "`data.jpeg_qualities` is for models that take images, and this one does not",
        do="Leave it out, or say with `export.preprocess` how files become the model's input.",
    )


def scores(
    images: ValidationImages, qualities: Sequence[int], validation: Validation, answer: _Answer
) -> Iterator[JpegScore]:
    """The score of the original images, then of each quality; on at most a thousand images, evenly spread.

    `answer` runs the model in fp32. `validation` has the images' labels, and a metric.

    Raises:
        DataInvalid: the labels can't be compared with the answers.
    """
    picked = np.unique(np.linspace(0, len(images) - 1, min(len(images), _MOST)).astype(int))
    labels = cast("NDArray[Any]", validation.labels)[picked]
    around, _ = fronts.load_front(images.front)
    for quality in (None, *qualities):
        progress(f"scoring images as JPEG {quality}" if quality else "scoring images as they are")
        outputs, sizes = [], []
        for start in range(0, len(picked), _AT_ONCE):
            feeds, more = _batch(images, around, picked[start : start + _AT_ONCE], quality)
            outputs.append(answer(feeds))
            sizes += more
        answers = {name: np.concatenate([each[name] for each in outputs]) for name in outputs[0]}
        known = replace(validation, asked={}, reference={}, inputs={}, labels=labels, columns={}, rows=np.arange(1))
        scored = known.judge(answers)
        yield JpegScore(
            quality=quality,
            score=scored.score,
            resamples=scored.resamples,
            samples=len(picked),
            image_bytes=round(float(np.mean(sizes)), 1),
        )


def _batch(images: ValidationImages, around: Any, rows: NDArray[Any], quality: int | None) -> tuple[Arrays, list[int]]:
    """The graph's inputs for some images, and the number of bytes of each image on the wire."""
    if images.tensors is None:
        bodies = [images.files[row] for row in rows]
        pixels = [jpegs.pixels_of_file(body) for body in bodies]
        files = [jpegs.encoded(each, quality) for each in pixels] if quality else bodies
        sizes = [len(file) for file in files] if quality else [each.nbytes for each in pixels]
        return around.feeds(around.encode(around.read(files))), sizes
    settings, tensors = around.settings, [images.tensors[row] for row in rows]
    pixels = [jpegs.pixels_of_tensor(tensor, settings) for tensor in tensors]
    if quality is None:
        return {settings["pixels"]: np.stack(tensors)}, [each.nbytes for each in pixels]
    files = [jpegs.encoded(each, quality) for each in pixels]
    decoded = [jpegs.tensor_of(jpegs.pixels_of_file(file), settings) for file in files]
    return {settings["pixels"]: np.stack(decoded)}, [len(file) for file in files]
