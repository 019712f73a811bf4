"""The proof of a graph behind a front: each text or image is answered as by `mlflow.pyfunc`, alone and in batches."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.admission.front_questions import MADE
from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.tensors import Arrays, load_npz, under
from shiplift.runtime.model.text.comparing import text_difference
from shiplift.runtime.model.text.fronts import load_front
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.comparison import compare
from shiplift.runtime.proof.oracle import answers_to
from shiplift.runtime.proof.settings import Ask, count_of
from shiplift.runtime.proof.tolerances import usual_magnitude
from shiplift.runtime.records.model import ParityCase

_IN_JSON = 5e-4  # that numbers in answers of JSON, which are probabilities, may differ


def front_cases(running: Any, folder: Path) -> list[ParityCase]:
    """Asks a session behind the front in `folder`, which `texts.npz` is next to, and how far off its answers are.

    Raises:
        ExportFailed: an answer is not the original's.
    """
    arrays, (front, _) = load_npz(folder.with_name("texts.npz")), load_front(folder)

    def ask(inputs: Arrays) -> Arrays:
        answers: Arrays = front.run(front.samples(inputs), lambda feeds: onnx_models.answer(running, feeds))
        return answers

    usual = _usual([under("output/", arrays), under(f"{MADE}output/", arrays)])
    for prefix, origin in ((MADE, "made"), ("", "example")):
        inputs, right = under(f"{prefix}input/", arrays), under(f"{prefix}output/", arrays)
        if inputs:
            _require_same(ask, inputs, _right(right, usual), origin)
    expected = under("output/", arrays)
    return [
        _case("texts", count_of(inputs), expected, ask(inputs)),
        _case("each text alone", 1, expected, answers_to(ask, inputs, batches=False).outputs),
    ]


def _usual(sets: Sequence[Arrays]) -> Arrays:
    """The usual magnitudes of floats on their last axis, by output: every token has the same features."""
    kept: dict[str, list[NDArray[Any]]] = {}
    for outputs in sets:
        for name, array in outputs.items():
            if array.dtype.kind == "f":
                kept.setdefault(name, []).append(array.reshape(-1, array.shape[-1]).astype(np.float64))
    return {name: usual_magnitude(np.concatenate(each)) for name, each in kept.items()}


def _right(outputs: Arrays, usual: Arrays) -> Answers:
    """Answers whose tolerance is relative to those magnitudes."""
    sizes = {name: (len(outputs[name]), outputs[name][0].size) for name in usual}
    each = {name: np.tile(array, (sizes[name][0], sizes[name][1] // array.size)) for name, array in usual.items()}
    return replace(Answers.of(outputs), usual=each)


def _require_same(ask: Ask, inputs: Arrays, right: Answers, origin: str) -> None:
    count = count_of(inputs)
    for setting, batches in (("alone", False), ("in batches", True)):
        served = answers_to(ask, inputs, batches=batches)
        near = {name: _as_told(right.outputs.get(name), array) for name, array in served.outputs.items()}
        given = Answers(outputs=near, errors=served.errors)
        found = compare(right, given, [origin] * count, setting=setting).first
        if found:
            raise ExportFailed(
                f"what would be served is not the model: {found}",
                do="Log the model itself as pt2 or ONNX, or as a Python model, and check the version of its library.",
            )


def _as_told(right: NDArray[Any] | None, served: NDArray[Any]) -> NDArray[Any]:
    """The served answers, but the right one where they are texts whose numbers are near enough."""
    if right is None or right.dtype.kind not in "OSU" or right.shape != served.shape:
        return served
    near = [text_difference(left, given) <= _IN_JSON for left, given in zip(right, served, strict=True)]
    return np.where(np.reshape(near, (-1, *(1,) * (right.ndim - 1))), right, served)


def _case(name: str, batch: int, expected: Arrays, actual: Arrays) -> ParityCase:
    differences = [onnx_models.differences(array, np.asarray(actual[key])) for key, array in expected.items()]
    return ParityCase(
        inputs=name,
        batch=batch,
        max_abs=max(absolute for absolute, _ in differences),
        max_rel=max(relative for _, relative in differences),
    )
