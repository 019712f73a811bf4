"""Post-processing as part of the graph, so that clients get probabilities or labels and no Python runs per request.

Each operation exists three times: as ONNX nodes, in torch for TorchScript, and in numpy to check parity with the
original's outputs.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.model.tensors import Arrays


def in_numpy(outputs: Arrays, steps: tuple[str, ...], top_k: int) -> Arrays:
    """The outputs after all steps; each step replaces the first output."""
    for step in steps:
        name, value = next(iter(outputs.items()))
        rest = {key: array for key, array in outputs.items() if key != name}
        outputs = {**_NUMPY[step](value, top_k), **rest}
    return outputs


def in_graph(model: onnx.ModelProto, steps: tuple[str, ...], top_k: int) -> onnx.ModelProto:
    """The model with the steps appended to its first output.

    Raises:
        ExportFailed: the first output is not a float tensor of rank 2, or a step's output name is taken.
    """
    for step in steps:
        _check_free(model, step)
        output = model.graph.output[0]
        rank, kind = len(output.type.tensor_type.shape.dim), output.type.tensor_type.elem_type
        if rank != 2 or kind not in (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16):
            raise ExportFailed(
                f"post-processing {step!r} needs a float output of shape (batch, classes); {output.name!r} has rank "
                f"{rank} and type {TensorProto.DataType.Name(kind)}",
                do="Leave `export.postprocess` out of the spec, or put the output that it is for first: "
                "`export: {outputs: [NAME]}`.",
            )
        _GRAPH[step](model, output, top_k)
    return model


def in_torch(module: Any, steps: tuple[str, ...], top_k: int) -> Any:
    """The torch module with the steps after its first output; it returns one tensor, or a flat tuple of them."""
    if not steps:
        return module
    import torch  # noqa: PLC0415 - only for torch models

    class Postprocessed(torch.nn.Module):  # type: ignore[misc]  # mypy does not follow torch
        def __init__(self) -> None:
            super().__init__()
            self.model = module
            self.training = False  # not eval(): an exported program's module can't be switched

        def forward(self, *inputs: Any) -> Any:
            outputs = torch.utils._pytree.tree_leaves(self.model(*inputs))
            for step in steps:
                outputs = [*_TORCH[step](outputs[0], top_k), *outputs[1:]]
            return outputs[0] if len(outputs) == 1 else tuple(outputs)

    return Postprocessed()


def _check_free(model: onnx.ModelProto, step: str) -> None:
    graph = model.graph
    taken = {name for node in graph.node for name in node.output} | {e.name for e in (*graph.input, *graph.initializer)}
    if clash := sorted(taken & _OUTPUT_NAMES[step]):
        raise ExportFailed(
            f"post-processing {step!r} adds the output {clash[0]!r}, but the model already has a tensor of that name",
            do="Leave `export.postprocess` out of the spec, or rename the model's own output.",
        )


def _softmax(value: NDArray[Any]) -> NDArray[Any]:
    exponentials = np.exp(value - value.max(axis=-1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=-1, keepdims=True), dtype=value.dtype)


def _sigmoid(value: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(1 / (1 + np.exp(-value)), dtype=value.dtype)


def _argmax(value: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(value.argmax(axis=-1), dtype=np.int64).reshape(-1, 1)


def _top(value: NDArray[Any], k: int) -> Arrays:
    order = np.argsort(-value, axis=-1, kind="stable")[:, :k].astype(np.int64)
    return {"top_scores": np.take_along_axis(value, order, axis=-1), "top_labels": order}


_OUTPUT_NAMES: dict[str, set[str]] = {
    "softmax": {"probabilities"},
    "sigmoid": {"probabilities"},
    "argmax": {"label"},
    "top_k": {"top_scores", "top_labels"},
}
_NUMPY: dict[str, Callable[[NDArray[Any], int], Arrays]] = {
    "softmax": lambda value, _k: {"probabilities": _softmax(value)},
    "sigmoid": lambda value, _k: {"probabilities": _sigmoid(value)},
    "argmax": lambda value, _k: {"label": _argmax(value)},
    "top_k": _top,
}


_TORCH: dict[str, Callable[[Any, int], tuple[Any, ...]]] = {
    "softmax": lambda value, _k: (value.softmax(-1),),
    "sigmoid": lambda value, _k: (value.sigmoid(),),
    "argmax": lambda value, _k: (value.argmax(-1, keepdim=True),),
    "top_k": lambda value, k: tuple(value.topk(k, -1)),
}


def _replace_first(model: onnx.ModelProto, outputs: list[onnx.ValueInfoProto]) -> None:
    rest = list(model.graph.output)[1:]
    del model.graph.output[:]
    model.graph.output.extend([*outputs, *rest])


def _shape(output: onnx.ValueInfoProto, last: int | None = None) -> list[int | str | None]:
    dims = [d.dim_param or d.dim_value or None for d in output.type.tensor_type.shape.dim]
    return dims if last is None else [*dims[:-1], last]


def _elementwise(operator: str) -> Callable[[onnx.ModelProto, onnx.ValueInfoProto, int], None]:
    def append(model: onnx.ModelProto, output: onnx.ValueInfoProto, _k: int) -> None:
        attributes = {"axis": -1} if operator == "Softmax" else {}
        model.graph.node.append(helper.make_node(operator, [output.name], ["probabilities"], **attributes))
        kind = output.type.tensor_type.elem_type
        _replace_first(model, [helper.make_tensor_value_info("probabilities", kind, _shape(output))])

    return append


def _append_argmax(model: onnx.ModelProto, output: onnx.ValueInfoProto, _k: int) -> None:
    model.graph.node.append(helper.make_node("ArgMax", [output.name], ["label"], axis=-1, keepdims=1))
    _replace_first(model, [helper.make_tensor_value_info("label", TensorProto.INT64, _shape(output, 1))])


def _append_top(model: onnx.ModelProto, output: onnx.ValueInfoProto, k: int) -> None:
    classes = output.type.tensor_type.shape.dim[-1].dim_value
    if classes and k > classes:
        raise ExportFailed(
            f"export.top_k is {k}, the model has {classes} classes",
            do="Lower it to their number at most: `export: {top_k: N}`.",
        )
    model.graph.initializer.append(helper.make_tensor("shiplift_k", TensorProto.INT64, [1], [k]))
    model.graph.node.append(
        helper.make_node("TopK", [output.name, "shiplift_k"], ["top_scores", "top_labels"], axis=-1)
    )
    kind = output.type.tensor_type.elem_type
    scores = helper.make_tensor_value_info("top_scores", kind, _shape(output, k))
    labels = helper.make_tensor_value_info("top_labels", TensorProto.INT64, _shape(output, k))
    _replace_first(model, [scores, labels])


_GRAPH: dict[str, Callable[[onnx.ModelProto, onnx.ValueInfoProto, int], None]] = {
    "softmax": _elementwise("Softmax"),
    "sigmoid": _elementwise("Sigmoid"),
    "argmax": _append_argmax,
    "top_k": _append_top,
}
