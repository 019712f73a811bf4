"""The requests that an export compared, as questions for the packaged server."""

import numpy as np

from shiplift.runtime.model.tensors import Arrays, inputs_in
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.file import in_file
from shiplift.runtime.proof.tolerances import NOISE_FACTOR, PROBABLE
from shiplift.runtime.records.tensor import Signature

_ORIGIN = "example"


def of_reference(reference: Arrays, signature: Signature) -> Arrays:
    """The arrays of a file, as `proof.file` says, with the requests and answers of a reference.

    Those are `input/NAME` and `output/NAME`, with a row for each request. Numbers in texts that are JSON may be off as
    much as a probability. If answers have different lengths, each request is a set of its own, since a batch would get
    answers as long as its longest.
    """
    inputs = inputs_in(reference, signature)
    right = {spec.name: reference[f"output/{spec.name}"] for spec in signature.outputs}
    texts = {name: np.array([PROBABLE / NOISE_FACTOR]) for name, array in right.items() if array.dtype.kind in "OSU"}
    count = len(next(iter(inputs.values())))
    ragged = any(-1 in spec.shape[1:] for spec in signature.outputs)
    rows = [slice(row, row + 1) for row in range(count)] if ragged else [slice(0, count)]
    asked = {str(at): {name: array[each] for name, array in inputs.items()} for at, each in enumerate(rows)}
    answers = {
        str(at): Answers(
            outputs={name: array[each] for name, array in right.items()},
            errors=("",) * len(range(count)[each]),
            noise=texts,
        )
        for at, each in enumerate(rows)
    }
    return in_file(asked, answers, {name: (_ORIGIN,) * len(each.errors) for name, each in answers.items()})
