"""What NVIDIA's backend of trees serves of a model: one matrix of FP32, and one output of scores, under its own names.

A binary classifier whose trees add up to one score answers the probability of its second class alone.
"""

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.records.tensor import Signature, TensorSpec
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
    if len(signature.inputs) != 1 or signature.inputs[0].datatype != "FP32" or not scores:
        raise SpecInvalid(
            "NVIDIA's backend of trees takes one tensor of FP32 features, and answers scores",
            do="Log the model with such an input, keep its scores in `export.outputs`, or set another engine.",
        )
    given, answered = signature.inputs[0], scores[0]
    served = Signature(inputs=(_named(given, INPUT),), outputs=(_named(answered, OUTPUT),))
    renamed = {f"input/{given.name}": f"input/{INPUT}", f"output/{answered.name}": f"output/{OUTPUT}"}
    asked = {renamed[name]: array for name, array in golden.items() if name in renamed}
    return served, {INPUT: inputs[given.name]}, asked


def _named(spec: TensorSpec, name: str) -> TensorSpec:
    return spec.model_copy(update={"name": name})
