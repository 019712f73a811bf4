"""What NVIDIA's backend of trees serves of a model, under its own names."""

from typing import Any

import numpy as np
import pytest

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.families.graph.fil import as_served
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.records.trees import TreesForm
from tests.unit.examples import tensor

LABEL, SCORES = tensor("label", -1, datatype="INT64"), tensor("probabilities", -1, 3)
FORM = TreesForm(answers={"label": "class", "probabilities": "scores"}, classifier=True)
X, P = np.ones((2, 4), np.float32), np.full((2, 3), 1 / 3, np.float32)
GOLDEN: Arrays = {"input/x": X, "output/label": np.zeros(2, np.int64), "output/probabilities": P}


def test_one_input_and_the_scores_are_served_under_its_names() -> None:
    signature = Signature(inputs=(tensor("x", -1, 4),), outputs=(LABEL, SCORES))
    served, inputs, golden = as_served(signature, {"x": X}, GOLDEN, FORM)
    assert served == Signature(inputs=(tensor("input__0", -1, 4),), outputs=(tensor("output__0", -1, 3),))
    assert (list(inputs), list(golden)) == (["input__0"], ["input/input__0", "output/output__0"])
    assert (golden["output/output__0"] == P).all()


def test_a_binary_classifier_with_one_score_answers_that_of_its_second_class() -> None:
    form = FORM.model_copy(update={"scores": 1})
    signature = Signature(inputs=(tensor("x", -1, 4),), outputs=(LABEL, tensor("probabilities", -1, 2)))
    golden: Arrays = {"input/x": X, "output/probabilities": np.array([[0.25, 0.75]] * 2, np.float32)}
    served, _, asked = as_served(signature, {"x": X}, golden, form)
    assert served.outputs == (tensor("output__0", -1, 1),)
    assert asked["output/output__0"].tolist() == [[0.75]] * 2


@pytest.mark.parametrize(
    "sides",
    [
        {"inputs": (tensor("a", -1, 1), tensor("b", -1, 1)), "outputs": (SCORES,)},
        {"inputs": (tensor("x", -1, 4, datatype="FP64"),), "outputs": (SCORES,)},
        {"inputs": (tensor("x", -1, 4),), "outputs": (LABEL,)},
    ],
)
def test_what_it_does_not_serve_is_refused(sides: Any) -> None:
    with pytest.raises(SpecInvalid, match="one tensor of FP32 features, and answers scores"):
        as_served(Signature(**sides), {}, {}, FORM)
