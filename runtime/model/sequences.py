"""Stateful models: the signature that clients see, and the answers to a sequence of requests.

A state is an input that takes an output's value from the previous request (Triton's implicit state management). The
model itself stays a pure function; the server keeps the state between requests.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.tensors import Arrays, concatenate, numpy_type
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.spec.serving_settings import SequenceBatching

_DO = "See `serving.sequence_batching` in the file that `shiplift init` writes."


def hide_states(signature: Signature, batching: SequenceBatching | None) -> tuple[Signature, dict[str, TensorSpec]]:
    """The signature without states, and for each state's input name the output that holds its next value.

    Raises:
        SpecInvalid: a state names no input or output, the two do not match, or no other input or output is left.
    """
    if batching is None:
        return signature, {}
    inputs = {spec.name: spec for spec in signature.inputs}
    outputs = {spec.name: spec for spec in signature.outputs}
    for state_input, state_output in batching.states.items():
        _check_pair(state_input, state_output, inputs, outputs)
    visible = Signature(
        inputs=tuple(spec for spec in signature.inputs if spec.name not in batching.states),
        outputs=tuple(spec for spec in signature.outputs if spec.name not in batching.states.values()),
    )
    if not visible.inputs or not visible.outputs:
        raise SpecInvalid(
            f"besides its states the model has {len(visible.inputs)} inputs and {len(visible.outputs)} outputs, "
            "but needs at least one of each",
            do=_DO,
        )
    return visible, {name: outputs[state_output] for name, state_output in batching.states.items()}


def _check_pair(
    state_input: str, state_output: str, inputs: Mapping[str, TensorSpec], outputs: Mapping[str, TensorSpec]
) -> None:
    for name, known, kind in ((state_input, inputs, "input"), (state_output, outputs, "output")):
        if name not in known:
            raise SpecInvalid(f"the model has no {kind} {name!r}; it has {', '.join(known)}", do=_DO)
    left, right = inputs[state_input], outputs[state_output]
    if left.datatype != right.datatype or left.shape[1:] != right.shape[1:]:
        raise SpecInvalid(
            f"state {state_input!r} is {left.datatype} {left.shape}, but output {state_output!r} is {right.datatype} "
            f"{right.shape}",
            do=_DO,
        )
    if left.datatype == "BYTES" or -1 in left.shape[1:]:
        raise SpecInvalid(
            f"state {state_input!r} is {left.datatype} {left.shape}; a sequence starts from zeros of a known shape",
            do=_DO,
        )


def answer_sequence(running: Any, inputs: Arrays, states: Mapping[str, TensorSpec]) -> Arrays:
    """A session's answers to `inputs` (arrays by name, one sample per step) as one sequence, without the states.

    Without states, each sample is answered separately.
    """
    carried = {name: np.zeros((1, *spec.shape[1:]), numpy_type(spec.datatype)) for name, spec in states.items()}
    answers = []
    for step in range(len(next(iter(inputs.values())))):
        sample = {name: array[step : step + 1] for name, array in inputs.items()}
        outputs = onnx_models.answer(running, sample | carried)
        carried = {name: outputs.pop(spec.name) for name, spec in states.items()}
        answers.append(outputs)
    return concatenate(answers)
