"""Which layers lose most accuracy at 8 bits. Measured once per graph, stored, and used to leave the fewest in float.

A layer's noise is the power of its output's error (quantized against float) over the power of its output, on real
samples. Layers are ranked by the noise that they add to the noise of their inputs. A retrained version has the same
graph and the same weak spots, so the ranking is stored under the digest of the graph without its weights.
"""

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
from shiplift.runtime.model.graph_digest import graph_digest
from shiplift.runtime.model.tensors import Arrays


def ranking(
    stored: Path, prepared: Path, quantized: Path, layers: Sequence[str], samples: Arrays, *, kind: str = "static"
) -> tuple[str, ...]:
    """The layers, most sensitive first: read from the folder `stored`, or else measured and stored there.

    Each `kind` of quantization has its own ranking.
    """
    file = stored / f"{graph_digest(prepared)}{'' if kind == 'static' else f'-{kind}'}.json"
    if file.is_file():
        known = [name for name in json.loads(file.read_text())["layers"] if name in set(layers)]
        if len(known) == len(layers):
            return tuple(known)
    noise = layer_noise(prepared, quantized, layers, samples)
    added = noise_added(prepared, noise)
    order = sorted(layers, key=lambda name: -added.get(name, 0.0))
    write_atomically(file, json.dumps({"layers": order, "noise": {name: noise.get(name, 0.0) for name in order}}))
    return tuple(order)


def layer_noise(prepared: Path, quantized: Path, layers: Sequence[str], samples: Arrays) -> dict[str, float]:
    """The power of each layer's error over the power of its output, over all samples.

    The models run one after the other, with the outputs of the first on disk: together they would hold the float
    weights twice.

    Raises:
        QuantizeFailed: one of the two models does not run.
    """
    graph = onnx.load(prepared, load_external_data=False).graph
    outputs = {name for node in onnx.load(quantized, load_external_data=False).graph.node for name in node.output}
    # A layer is identified by its output tensor: once quantized, its node may have another name.
    tensors = {
        node.output[0]: node.name for node in graph.node if node.name in set(layers) and node.output[0] in outputs
    }
    sizes = {value.name: onnx_models.sample_bytes(value) for value in (*graph.value_info, *graph.output)}
    noises: dict[str, float] = {}
    for part in onnx_models.partition(
        {name: sizes.get(name, 0) for name in tensors}, onnx_models.observed_bytes(prepared)
    ):
        with TemporaryDirectory(dir=prepared.parent) as folder:
            for index, exact in enumerate(_outputs(prepared, part, samples)):
                np.savez(Path(folder) / f"{index}.npz", *exact)
            noise = _noise(_outputs(quantized, part, samples), Path(folder))
        noises |= {tensors[name]: power for name, power in zip(part, noise, strict=True)}
    return noises


def _noise(rough: Iterable[list[Any]], exact: Path) -> list[float]:
    """The power of each output's error over its own; the folder `exact` has an NPZ for each item of `rough`."""
    powers = []
    for sample, outputs in enumerate(rough):
        with np.load(exact / f"{sample}.npz") as arrays:
            powers.append([_powers(arrays[f"arr_{index}"], output) for index, output in enumerate(outputs)])
    error, signal = np.sum(powers, axis=0).T
    return [float(ratio) for ratio in np.divide(error, signal, out=np.zeros_like(error), where=signal > 0)]


def _powers(exact: NDArray[Any], rough: NDArray[Any]) -> tuple[float, float]:
    signal = exact.astype(np.float64)
    return float(np.square(rough - signal).sum()), float(np.square(signal).sum())


def _outputs(model: Path, tensors: Sequence[str], samples: Arrays) -> Iterator[list[Any]]:
    """A model's values of these tensors, sample by sample. Nothing is fused, so that both models compute alike."""
    loaded = onnx.load(model, load_external_data=False)
    del loaded.graph.output[:]
    loaded.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in tensors)
    try:
        running = onnx_models.observing_session(loaded, model)
    except Exception as error:
        raise QuantizeFailed(
            f"the layers' errors can't be measured: {' '.join(str(error).split())[:300]}", do="Report the model."
        ) from error
    for index in range(len(next(iter(samples.values())))):
        yield list(running.run(list(tensors), {name: array[index : index + 1] for name, array in samples.items()}))
    del running
    onnx_models.release_memory()  # the next model needs it


def noise_added(prepared: Path, noise: Mapping[str, float]) -> dict[str, float]:
    """The noise that each layer adds: its own, minus the largest among the layers that feed it."""
    graph = onnx.load(prepared, load_external_data=False).graph
    at_tensor: dict[str, float] = {}
    added: dict[str, float] = {}
    for node in graph.node:  # in topological order
        incoming = max((at_tensor.get(name, 0.0) for name in node.input), default=0.0)
        own = noise.get(node.name)
        if own is not None:
            added[node.name] = own - incoming
        for name in node.output:
            at_tensor[name] = incoming if own is None else own
    return added


def smallest(count: int, fits: Callable[[int], bool]) -> int | None:
    """The smallest k from 1 to `count` that `fits`, found by doubling, then halving; None if not even `count` fits.

    Each call of `fits` costs a build and an evaluation. If k fits, larger k are assumed to fit too. If none fits, which
    is common, there is one call.
    """
    if not fits(count):
        return None
    low, high = 0, 1
    while high < count and not fits(high):
        low, high = high, high * 2
    high = min(high, count)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
