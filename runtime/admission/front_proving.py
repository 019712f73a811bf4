"""The proof of a graph behind a front: each text or image is answered as by `mlflow.pyfunc`, alone and in batches."""

from pathlib import Path
from typing import Any

import numpy as np

from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.tensors import MADE, Arrays, load_npz, under
from shiplift.runtime.model.text.fronts import load_front
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.comparison import compare
from shiplift.runtime.proof.features import of_features, usual_of_features
from shiplift.runtime.proof.oracle import answers_to
from shiplift.runtime.proof.settings import Ask, count_of
from shiplift.runtime.records.model import ParityCase


def front_cases(running: Any, folder: Path) -> list[ParityCase]:
    """Asks a session behind the front in `folder`, which `texts.npz` is next to, and how far off its answers are.

    Raises:
        ExportFailed: an answer is not the original's.
    """
    arrays, (front, _) = load_npz(folder.with_name("texts.npz")), load_front(folder)

    def ask(inputs: Arrays) -> Arrays:
        answers: Arrays = front.run(front.samples(inputs), lambda feeds: onnx_models.answer(running, feeds))
        return answers

    usual = usual_of_features([under("output/", arrays), under(f"{MADE}output/", arrays)])
    for prefix, origin in ((MADE, "made"), ("", "example")):
        inputs, right = under(f"{prefix}input/", arrays), under(f"{prefix}output/", arrays)
        if inputs:
            _require_same(ask, inputs, of_features(right, usual), origin)
    expected = under("output/", arrays)
    return [
        _case("texts", count_of(inputs), expected, ask(inputs)),
        _case("each text alone", 1, expected, answers_to(ask, inputs, batches=False).outputs),
    ]


def _require_same(ask: Ask, inputs: Arrays, right: Answers, origin: str) -> None:
    count = count_of(inputs)
    for setting, batches in (("alone", False), ("in batches", True)):
        served = answers_to(ask, inputs, batches=batches)
        found = compare(right, served, [origin] * count, setting=setting).first
        if found:
            raise ExportFailed(
                f"what would be served is not the model: {found}",
                do="Log the model itself as pt2 or ONNX, or as a Python model, and check the version of its library.",
            )


def _case(name: str, batch: int, expected: Arrays, actual: Arrays) -> ParityCase:
    differences = [onnx_models.differences(array, np.asarray(actual[key])) for key, array in expected.items()]
    return ParityCase(
        inputs=name,
        batch=batch,
        max_abs=max(absolute for absolute, _ in differences),
        max_rel=max(relative for _, relative in differences),
    )
