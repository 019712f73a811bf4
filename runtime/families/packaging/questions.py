"""The requests that an export compared, as questions for the packaged server."""

from shiplift.runtime.model.tensors import MADE, Arrays, inputs_in, under
from shiplift.runtime.proof.features import of_features, usual_of_features
from shiplift.runtime.proof.file import in_file
from shiplift.runtime.records.tensor import Signature

_EXAMPLE, _MADE = "example", "made"


def of_reference(reference: Arrays, signature: Signature) -> Arrays:
    """The arrays of a file, as `proof.file` says, with the requests and answers of a reference.

    Those are `input/NAME` and `output/NAME`, with a row for each request, and below `MADE` those that the export made.
    """
    sets = {_EXAMPLE: reference, _MADE: under(MADE, reference)}
    inputs = {name: inputs_in(each, signature) for name, each in sets.items() if each}
    outputs = {name: {spec.name: sets[name][f"output/{spec.name}"] for spec in signature.outputs} for name in inputs}
    usual = usual_of_features([*outputs.values()])
    answers = {name: of_features(each, usual) for name, each in outputs.items()}
    return in_file(inputs, answers, {name: (name,) * len(each.errors) for name, each in answers.items()})
