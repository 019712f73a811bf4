"""Models that remember: what clients see of them, and what their requests answer one after the other.

A state is an input that takes what an output gave for the request before (Triton's implicit state management). The
model itself stays a function of both; whoever serves it keeps the state in between.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.tensors import Arrays, numpy_type
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.spec.serving import SequenceBatching

_DO = "See `serving.sequence_batching` in what `shiplift init` writes."


def hide_states(signature: Signature, how: SequenceBatching | None) -> tuple[Signature, dict[str, TensorSpec]]:
    """The signature without its states, and by the name of each input that takes one the output that gives the next.

    Raises:
        SpecInvalid: a state is no such input or output, the two don't fit each other, or nothing else is left.
    """
    if how is None:
        return signature, {}
    inputs = {spec.name: spec for spec in signature.inputs}
    outputs = {spec.name: spec for spec in signature.outputs}
    for taken, given in how.states.items():
        _check_pair(taken, given, inputs, outputs)
    seen = Signature(
        inputs=tuple(spec for spec in signature.inputs if spec.name not in how.states),
        outputs=tuple(spec for spec in signature.outputs if spec.name not in how.states.values()),
    )
    if not seen.inputs or not seen.outputs:
        raise SpecInvalid(
            f"beside its states the model has {len(seen.inputs)} inputs and {len(seen.outputs)} outputs", do=_DO
        )
    return seen, {taken: outputs[given] for taken, given in how.states.items()}


def _check_pair(taken: str, given: str, inputs: Mapping[str, TensorSpec], outputs: Mapping[str, TensorSpec]) -> None:
    for name, known, kind in ((taken, inputs, "input"), (given, outputs, "output")):
        if name not in known:
            raise SpecInvalid(f"the model has no {kind} {name!r}, but {', '.join(known)}", do=_DO)
    left, right = inputs[taken], outputs[given]
    if left.datatype != right.datatype or left.shape[1:] != right.shape[1:]:
        raise SpecInvalid(
            f"state {taken!r} is {left.datatype} {left.shape}, {given!r} gives {right.datatype} {right.shape}", do=_DO
        )
    if left.datatype == "BYTES" or -1 in left.shape[1:]:
        raise SpecInvalid(
            f"state {taken!r} is {left.datatype} {left.shape}: a sequence starts from zeros of a known shape", do=_DO
        )


def walk(running: Any, inputs: Arrays, states: Mapping[str, TensorSpec]) -> Arrays:
    """What a session answers to `inputs` (by name, a sample a step) as one sequence, states left out.

    Without states each sample is answered by itself.
    """
    kept = {name: np.zeros((1, *spec.shape[1:]), numpy_type(spec.datatype)) for name, spec in states.items()}
    rows = []
    for at in range(len(next(iter(inputs.values())))):
        given = onnx_models.answer(running, {name: array[at : at + 1] for name, array in inputs.items()} | kept)
        kept = {name: given.pop(spec.name) for name, spec in states.items()}
        rows.append(given)
    return onnx_models.stacked(rows)
