"""The contract of an ONNX graph: its tensors, its batch size, and which of its tensors are states.

MLflow's signature can't express a scalar, and is guessed from an example; but the graph is what runs. Everywhere else
in Shiplift a tensor's first axis counts samples. A tensor without such an axis, a scalar or a recurrent state of
(layers, batch, features), gets one in front, of size 1, and its model is then served one sample at a time.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shiplift.runtime.base.errors import NotAdmitted
from shiplift.runtime.model.tensors import Arrays, datatype
from shiplift.runtime.records.tensor import Signature, TensorSpec

ANY = -1
_STATE = re.compile(r"(^|_)([hc][0t]?|past\w*)($|_)|state|hidden|cell|cache|memory|carry|context", re.IGNORECASE)
_NEXT = ("{}N", "{}n", "{}_n", "{}_out", "{}_next", "{}_new", "next_{}", "new_{}", "out_{}", "output_{}", "{}_output")
_TYPES = {"optional_type": "an optional value", "sequence_type": "a sequence", "map_type": "a map"}
_RENAMED = (("_in", "_out"), ("in_", "out_"), ("input", "output"), ("past", "present"), ("0", "n"), ("_prev", "_next"))


@dataclass(frozen=True, kw_only=True)
class GraphContract:
    """A graph's signature, with an axis of samples in front of every tensor, and its states by input.

    `whole` are the tensors that lack this axis in the graph.
    """

    signature: Signature
    states: Mapping[str, str]
    whole: frozenset[str]
    notes: tuple[str, ...] = ()

    def batched(self, arrays: Arrays) -> Arrays:
        """Arrays as an author passes them to the graph, with the signature's names and axes.

        They match by name, otherwise by order, since MLflow's signature may name them differently.
        """
        names = [spec.name for spec in self.signature.inputs]
        named = arrays if set(names) <= set(arrays) else dict(zip(names, arrays.values(), strict=True))
        return {name: named[name][None] if name in self.whole else named[name] for name in names}


@dataclass(frozen=True, kw_only=True)
class _Value:
    """A graph's input or output; a size is `ANY` if the graph doesn't say."""

    name: str
    kind: TensorSpec
    ranked: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return self.kind.shape


def read(file: Path, states: Mapping[str, str] | None = None) -> GraphContract | None:
    """The contract of the graph in a file; None if it can't be parsed. `states` None: find them by name.

    Raises:
        NotAdmitted: the graph has a tensor that Triton can't carry, or inputs that disagree on the batch.
    """
    import onnx  # noqa: PLC0415 - in the sandbox only
    from google.protobuf.message import DecodeError  # noqa: PLC0415

    try:
        graph = onnx.load(file, load_external_data=False).graph
    except (DecodeError, OSError):
        return None
    constants = {tensor.name for tensor in graph.initializer}
    inputs = [_value(entry, "input") for entry in graph.input if entry.name not in constants]
    outputs = [_value(entry, "output") for entry in graph.output]
    return contract(inputs, outputs, states) if inputs and outputs else None


def contract(inputs: list[_Value], outputs: list[_Value], states: Mapping[str, str] | None) -> GraphContract:
    """The contract of these inputs and outputs; see `read`."""
    paired = dict(find_states(inputs, outputs) if states is None else states)
    whole = {value.name for value in inputs if _is_whole(value, paired, inputs)}
    whole |= {paired[name] for name in whole if name in paired}
    batch = _batch([value for value in inputs if value.name not in whole], alone=bool(whole))
    whole |= {value.name for value in outputs if _lacks_batch(value, batch)}
    batch = 1 if whole else batch
    specs = {value.name: _spec(value, batch, whole, paired) for value in inputs}
    carried = {output: specs[name] for name, output in paired.items() if name in specs}
    return GraphContract(
        signature=Signature(
            inputs=tuple(specs.values()),
            outputs=tuple(_output(value, batch, whole, carried) for value in outputs),
        ),
        states=paired,
        whole=frozenset(whole),
        notes=tuple(_notes(whole, paired, told=states is not None)),
    )


def find_states(inputs: list[_Value], outputs: list[_Value]) -> dict[str, str]:
    """The inputs that take an output's previous value, by name, type and shape; none if no others would be left."""
    pairs = {value.name: output for value in inputs if (output := _next_of(value, outputs))}
    rest = len(inputs) > len(pairs) and len(outputs) > len(pairs)
    return pairs if rest and len(set(pairs.values())) == len(pairs) else {}


def _next_of(value: _Value, outputs: list[_Value]) -> str:
    name = value.name
    sized = bool(value.shape) and value.shape.count(ANY) <= 1  # apart from the batch: a sequence starts from zeros
    if not _STATE.search(name) or value.kind.datatype == "BYTES" or not sized:
        return ""
    names = {pattern.format(name) for pattern in _NEXT} | {name.replace(*pair) for pair in _RENAMED if pair[0] in name}
    fitting = [output.name for output in outputs if output.name in names and _alike(value, output)]
    return fitting[0] if len(fitting) == 1 else ""


def _alike(value: _Value, output: _Value) -> bool:
    if value.kind.datatype != output.kind.datatype:
        return False
    sizes = zip(value.shape, output.shape, strict=False)
    return not output.ranked or (
        len(value.shape) == len(output.shape) and all(left == right or ANY in (left, right) for left, right in sizes)
    )


_CARRIED = {  # what to do instead, by the kind of value as ONNX calls it
    "sequence_type": "Convert it with tensors as outputs (skl2onnx: `options={'zipmap': False}`; Concat or Split in "
    "place of a sequence's operators), and log that.",
    "map_type": "Convert it with a tensor in place of the map (skl2onnx: `options={'zipmap': False}`), and log that.",
    "optional_type": "Export it without optional values: a graph that takes and gives tensors.",
}


def _value(entry: Any, kind: str) -> _Value:
    import onnx  # noqa: PLC0415

    what = entry.type.WhichOneof("value")
    tensor = entry.type.tensor_type
    known = what == "tensor_type" and tensor.elem_type
    carried = datatype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)) if known else None
    if carried is None:
        raise NotAdmitted(
            f"{kind} {entry.name!r} of the graph is {_told(entry, what)}, which Triton can't carry",
            do=_CARRIED.get(what, "Use tensors of numbers, booleans or strings."),
        )
    ranked = tensor.HasField("shape")
    shape = tuple(dim.dim_value if dim.dim_value > 0 else ANY for dim in tensor.shape.dim) if ranked else (ANY,)
    return _Value(name=entry.name, kind=TensorSpec(name=entry.name, datatype=carried, shape=shape), ranked=ranked)


def _told(entry: Any, what: str | None) -> str:
    """How an error names the type of an input or output."""
    import onnx  # noqa: PLC0415

    if what == "tensor_type" and entry.type.tensor_type.elem_type:
        return f"a tensor of {onnx.TensorProto.DataType.Name(entry.type.tensor_type.elem_type)}"
    return _TYPES.get(what or "", f"of the type {what}")


def _is_whole(value: _Value, states: Mapping[str, str], inputs: list[_Value]) -> bool:
    """Whether an input has no axis of samples in front: it is a scalar, or a state whose first axis is another one."""
    if not value.shape:
        return True
    if value.name not in states or value.shape[0] == ANY:
        return False
    first = {other.shape[0] for other in inputs if other.name not in states and other.shape}
    return ANY in value.shape or (value.shape[0] != 1 and first != {value.shape[0]})


def _batch(inputs: list[_Value], *, alone: bool) -> int:
    """How many samples the graph takes at a time; `ANY` if it doesn't say.

    Raises:
        NotAdmitted: the inputs disagree.
    """
    sizes = {value.shape[0] for value in inputs} - {ANY}
    if len(sizes) > 1 or (sizes - {1} and (alone or any(value.shape[0] == ANY for value in inputs))):
        shapes = ", ".join(f"{value.name!r} {value.shape}" for value in inputs)
        raise NotAdmitted(
            f"the graph's inputs disagree on the batch, their first dimension: {shapes}",
            do="Export it with the same dynamic first dimension on all inputs; name states in "
            "`serving.sequence_batching`.",
        )
    return sizes.pop() if sizes else ANY


def _lacks_batch(value: _Value, batch: int) -> bool:
    return not value.shape or (batch == 1 and value.shape[0] not in (ANY, 1))


def _spec(value: _Value, batch: int, whole: set[str], states: Mapping[str, str]) -> TensorSpec:
    if value.name not in whole:
        return value.kind.model_copy(update={"shape": (batch, *value.shape[1:])})
    shape = tuple(1 if size == ANY else size for size in value.shape) if value.name in states else value.shape
    return value.kind.model_copy(update={"shape": (1, *shape)})


def _output(value: _Value, batch: int, whole: set[str], carried: Mapping[str, TensorSpec]) -> TensorSpec:
    if value.name in carried and carried[value.name].datatype == value.kind.datatype:
        return carried[value.name].model_copy(update={"name": value.name})
    return _spec(value, batch, whole, {})


def _notes(whole: set[str], states: Mapping[str, str], *, told: bool) -> Iterator[str]:
    if states and not told:
        pairs = ", ".join(f"{name} from {output}" for name, output in states.items())
        yield f"States found by name and shape: {pairs}. Served in sequences (serving.sequence_batching)."
    if whole:
        yield f"One sample at a time: {', '.join(sorted(whole))} have no batch dimension in the graph."
