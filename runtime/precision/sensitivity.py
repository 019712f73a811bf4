"""Which layers suffer most from 8 bits: measured once per graph, kept, and used to leave as few in float as it takes.

A layer's noise is the power of its output's error over that of its output, quantized against float, on real samples.
What it adds beyond the noise it was given ranks the layers. A retrained version has the same graph and the same weak
spots, so the ranking is kept under the digest of the graph without its weights.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from shiplift.runtime.base.errors import QuantizeFailed
from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.tensors import Arrays


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

    The two models run one after the other, the first one's outputs wait on disk: together they would hold the weights
    as float twice.

    Raises:
        QuantizeFailed: one of the two models does not run.
    """
    graph = onnx.load(prepared, load_external_data=False).graph
    made = {name for node in onnx.load(quantized, load_external_data=False).graph.node for name in node.output}
    # A layer is found by the tensor it gives: quantized, its node may have another name.
    tensors = {node.output[0]: node.name for node in graph.node if node.name in set(layers) and node.output[0] in made}
    sizes = {value.name: onnx_models.sample_bytes(value) for value in (*graph.value_info, *graph.output)}
    found: dict[str, float] = {}
    for part in onnx_models.partition(
        {name: sizes.get(name, 0) for name in tensors}, onnx_models.observed_bytes(prepared)
    ):
        with TemporaryDirectory(dir=prepared.parent) as folder:
            for at, exact in enumerate(_outputs(prepared, part, samples)):
                np.savez(Path(folder) / f"{at}.npz", *exact)
            noise = _noise(_outputs(quantized, part, samples), Path(folder))
        found |= {tensors[name]: one for name, one in zip(part, noise, strict=True)}
    return found


def _noise(rough: Iterable[list[Any]], exact: Path) -> list[float]:
    """The power of each output's error over its own: `exact` is a folder with an NPZ for each of `rough`."""
    powers = []
    for at, found in enumerate(rough):
        with np.load(exact / f"{at}.npz") as wanted:
            powers.append([_powers(wanted[f"arr_{index}"], got) for index, got in enumerate(found)])
    error, signal = np.sum(powers, axis=0).T
    return [float(one) for one in np.divide(error, signal, out=np.zeros_like(error), where=signal > 0)]


def _powers(wanted: NDArray[Any], got: NDArray[Any]) -> tuple[float, float]:
    exact = wanted.astype(np.float64)
    return float(np.square(got - exact).sum()), float(np.square(exact).sum())


def _outputs(model: Path, tensors: Sequence[str], samples: Arrays) -> Iterator[list[Any]]:
    """What a model has in these tensors, sample by sample; nothing is fused, so that all compute alike."""
    loaded = onnx.load(model, load_external_data=False)
    del loaded.graph.output[:]
    loaded.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in tensors)
    try:
        running = onnx_models.observing_session(loaded, model)
    except Exception as error:
        raise QuantizeFailed(
            f"the layers' errors can't be measured: {' '.join(str(error).split())[:300]}", do="Report the model."
        ) from error
    for at in range(len(next(iter(samples.values())))):
        yield list(running.run(list(tensors), {name: array[at : at + 1] for name, array in samples.items()}))
    del running
    onnx_models.release_memory()  # the next one is loaded in it


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
