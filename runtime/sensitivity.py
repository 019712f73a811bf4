"""Which layers suffer most from 8 bits: measured once per graph, kept, and used to leave as few in float as it takes.

A layer's noise is the power of its output's error over that of its output, quantized against float, on real samples.
What it adds beyond the noise it was given ranks the layers. A retrained version has the same graph and the same weak
spots, so the ranking is kept under the digest of the graph without its weights.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from runtime import onnx_models
from runtime.errors import QuantizeFailed
from runtime.storage import write_atomically
from runtime.tensors import Arrays

_BATCH = 1  # of samples: both sides give every layer's output at once


def ranking(
    kept: Path, prepared: Path, quantized: Path, layers: Sequence[str], samples: Arrays, *, kind: str = "static"
) -> tuple[str, ...]:
    """The layers, the most harmed first: as kept in the folder `kept` for this graph, else measured and kept there.

    Each `kind` of quantization harms others.
    """
    file = kept / f"{graph_digest(prepared)}{'' if kind == 'static' else f'-{kind}'}.json"
    if file.is_file():
        known = [name for name in json.loads(file.read_text())["layers"] if name in set(layers)]
        if len(known) == len(layers):
            return tuple(known)
    noise = layer_noise(prepared, quantized, layers, samples)
    added = noise_added(prepared, noise)
    order = sorted(layers, key=lambda name: -added.get(name, 0.0))
    write_atomically(file, json.dumps({"layers": order, "noise": {name: noise.get(name, 0.0) for name in order}}))
    return tuple(order)


def graph_digest(model: Path) -> str:
    """The digest of a graph: operators, attributes, edges, shapes and types, but no weights."""
    loaded = onnx.load(model, load_external_data=False)
    seen = hashlib.sha256()
    for tensor in loaded.graph.initializer:
        seen.update(f"{tensor.name} {tensor.data_type} {list(tensor.dims)}\n".encode())
    for node in loaded.graph.node:
        attributes = [_attribute(one) for one in node.attribute]
        seen.update(f"{node.op_type} {list(node.input)} {list(node.output)} {attributes}\n".encode())
    return seen.hexdigest()


def _attribute(one: onnx.AttributeProto) -> str:
    if one.type == onnx.AttributeProto.TENSOR:
        return f"{one.name} {one.t.data_type} {list(one.t.dims)}"
    return str(one.SerializeToString(deterministic=True))


def layer_noise(prepared: Path, quantized: Path, layers: Sequence[str], samples: Arrays) -> dict[str, float]:
    """The power of each layer's error over the power of its output, over all samples.

    Raises:
        QuantizeFailed: one of the two models does not run.
    """
    graph = onnx.load(prepared, load_external_data=False).graph
    tensors = {node.name: node.output[0] for node in graph.node if node.name in set(layers)}
    sides = [_Observed(model, tensors) for model in (prepared, quantized)]
    common = [name for name in layers if all(name in side.outputs for side in sides)]
    error, signal = dict.fromkeys(common, 0.0), dict.fromkeys(common, 0.0)
    size = len(next(iter(samples.values())))
    for at in range(0, size, _BATCH):
        batch = {name: array[at : at + _BATCH] for name, array in samples.items()}
        exact, rough = (side.run(common, batch) for side in sides)
        for name, wanted, got in zip(common, exact, rough, strict=True):
            error[name] += float(np.square(got.astype(np.float64) - wanted).sum())
            signal[name] += float(np.square(wanted.astype(np.float64)).sum())
    return {name: error[name] / signal[name] if signal[name] else 0.0 for name in common}


class _Observed:
    """A model that also gives the outputs of layers; nothing is fused, so both sides compute alike.

    A layer is found by the tensor it gives: quantized, its node may have another name.
    """

    def __init__(self, model: Path, tensors: Mapping[str, str]) -> None:
        loaded = onnx.load(model, load_external_data=False)
        made = {name for node in loaded.graph.node for name in node.output}
        self.outputs = {layer: tensor for layer, tensor in tensors.items() if tensor in made}
        known = {value.name for value in loaded.graph.output}
        for name in self.outputs.values():
            if name not in known:
                loaded.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
        try:
            self._session = onnx_models.observing_session(loaded, model)
        except Exception as error:
            raise QuantizeFailed(
                f"the layers' errors can't be measured: {' '.join(str(error).split())[:300]}", do="Report the model."
            ) from error

    def run(self, names: Sequence[str], batch: Arrays) -> list[Any]:
        """The outputs of the layers of these names."""
        return list(self._session.run([self.outputs[name] for name in names], batch))


def noise_added(prepared: Path, noise: Mapping[str, float]) -> dict[str, float]:
    """What each layer adds to the noise it is given: its own, less the largest among the layers that feed it."""
    graph = onnx.load(prepared, load_external_data=False).graph
    at_tensor: dict[str, float] = {}
    added: dict[str, float] = {}
    for node in graph.node:  # in topological order
        given = max((at_tensor.get(name, 0.0) for name in node.input), default=0.0)
        own = noise.get(node.name)
        if own is not None:
            added[node.name] = own - given
        for name in node.output:
            at_tensor[name] = given if own is None else own
    return added


def fewest(count: int, fits: Callable[[int], bool]) -> int | None:
    """The least k from 1 to `count` for which `fits(k)`, by doubling, then halving; None: not even `count` does.

    `fits` costs a build and a scoring; it is taken to stay true once it is.
    """
    low, high = 0, 1
    while not fits(min(high, count)):
        if high >= count:
            return None
        low, high = high, high * 2
    high = min(high, count)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
