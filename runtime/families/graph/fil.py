"""What NVIDIA's backend of trees serves of a model: one matrix of FP32, and one output of scores, under its own names.

A binary classifier whose trees add up to one score answers the probability of its second class alone.
"""

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.records.trees import TreesForm

INPUT, OUTPUT = "input__0", "output__0"


def as_served(
    signature: Signature, inputs: Arrays, golden: Arrays, form: TreesForm | None
) -> tuple[Signature, Arrays, Arrays]:
    """The signature, inputs and golden requests with what the backend has.

    Raises:
        SpecInvalid: it does not serve such a model.
    """
    scores = [spec for spec in signature.outputs if form and form.answers[spec.name] == "scores"]
    own = len(scores) > 0 and form is not None and form.subtracted_from is None
    if len(signature.inputs) != 1 or signature.inputs[0].datatype != "FP32" or not own:
        raise SpecInvalid(
            "NVIDIA's backend of trees takes one tensor of FP32 features, and answers scores as the trees have them",
            do="Log the model with such an input, keep its scores in `export.outputs`, or set another engine.",
        )
    given, answered = signature.inputs[0], scores[0]
    second = form is not None and form.scores == 1 and answered.shape == (-1, 2)
    output = answered.model_copy(update={"name": OUTPUT} | ({"shape": (-1, 1)} if second else {}))
    served = Signature(inputs=(given.model_copy(update={"name": INPUT}),), outputs=(output,))
    answers = golden[f"output/{answered.name}"]
    asked = {f"input/{INPUT}": golden[f"input/{given.name}"], f"output/{OUTPUT}": answers[:, 1:] if second else answers}
    return served, {INPUT: inputs[given.name]}, asked
