"""A causal language model of `transformers` as an OpenVINO model that keeps its keys and values as a state.

OpenVINO GenAI takes this form, and turns it into paged attention for continuous batching. Optimum's exporter writes the
same, but needs an older `transformers` than ours, so the few passes are here. The model must attend through
`scaled_dot_product_attention`. A comparison of tokens shows later whether it became the same model.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.model.conversion.original import failed

MODEL = "openvino_model.xml"
_BATCH, _PAST, _NEW = 2, 4, 3  # sizes for tracing the model: all different, and none is 1


def write(model: Any, to: Path) -> None:
    """Writes `openvino_model.xml` and `.bin`, in fp32, into the folder `to`.

    Inputs: `input_ids`, `attention_mask` and `position_ids` (INT64, batch and tokens), `beam_idx` (INT32, batch).
    Output: `logits` (FP32, batch, tokens and vocabulary).

    Raises:
        ExportFailed: the model has no such form.
    """
    import openvino  # noqa: PLC0415

    try:
        model.set_attn_implementation("sdpa")
        model = model.eval().float()
        sizes = _cache_sizes(model)
        converted = openvino.convert_model(_flat(model), example_input=_example(sizes))
        _name(converted, sizes)
        _keep_cache(converted, len(sizes))
        openvino.save_model(converted, str(to / MODEL), compress_to_fp16=False)
    except ExportFailed:
        raise
    except Exception as error:  # torch, transformers and OpenVINO may raise anything
        raise failed("the model can't be converted to a stateful OpenVINO model", error) from error


def _cache_sizes(model: Any) -> list[tuple[int, int, int]]:
    """The heads and the sizes of a key and of a value, by layer."""
    import torch  # noqa: PLC0415

    with torch.no_grad():
        cache = model(input_ids=torch.zeros((1, 2), dtype=torch.int64), use_cache=True).past_key_values
    layers: list[tuple[Any, Any]] = [
        (getattr(layer, "keys", None), getattr(layer, "values", None)) for layer in getattr(cache, "layers", ())
    ]
    if not layers or any(keys is None or keys.ndim != 4 for keys, _ in layers):
        raise ExportFailed(
            f"{type(model).__name__} keeps no keys and values per layer, which generation with OpenVINO needs",
            do="Choose a model with ordinary attention in all its layers, such as Llama, Qwen or Mistral.",
        )
    return [(keys.shape[1], keys.shape[3], values.shape[3]) for keys, values in layers]


def _flat(model: Any) -> Any:
    """The module from tensors to tensors: ids, mask, positions, and each layer's keys and values, in that order."""
    import torch  # noqa: PLC0415
    from transformers.cache_utils import DynamicCache, DynamicLayer  # noqa: PLC0415

    class Flat(torch.nn.Module):  # type: ignore[misc] # torch has no types here
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, *past: Any) -> Any:
            cache = DynamicCache()
            for keys, values in zip(past[::2], past[1::2], strict=True):
                layer = DynamicLayer()
                layer.lazy_initialization(keys, values)
                layer.keys, layer.values = keys, values
                cache.layers.append(layer)
            outputs = self.model(
                input_ids=input_ids,
                attention_mask=_visible(input_ids, attention_mask),
                position_ids=position_ids,
                past_key_values=cache,
                use_cache=True,
            )
            present = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
            return (outputs.logits, *present)

    return Flat().eval()


def _visible(input_ids: Any, attention_mask: Any) -> Any:
    """Which tokens each new token sees: itself and those before it, unless masked."""
    import torch  # noqa: PLC0415

    new, total = input_ids.shape[1], attention_mask.shape[1]
    columns = torch.arange(total)
    rows = columns[total - new :]
    before = columns.unsqueeze(0) <= rows.unsqueeze(1)
    return before.unsqueeze(0).unsqueeze(0) & attention_mask.to(torch.bool).unsqueeze(1).unsqueeze(1)


def _example(sizes: Sequence[tuple[int, int, int]]) -> tuple[Any, ...]:
    import torch  # noqa: PLC0415

    ids = torch.zeros((_BATCH, _NEW), dtype=torch.int64)
    positions = torch.arange(_PAST, _PAST + _NEW).expand(_BATCH, -1)
    past = [torch.zeros((_BATCH, heads, _PAST, size)) for heads, *both in sizes for size in both]
    return (ids, torch.ones((_BATCH, _PAST + _NEW), dtype=torch.int64), positions, *past)


def _name(converted: Any, sizes: Sequence[tuple[int, int, int]]) -> None:
    """Gives inputs and outputs the names that GenAI knows, and makes batch and tokens dynamic."""
    import openvino  # noqa: PLC0415

    of_layer = [f"{at}.{kind}" for at in range(len(sizes)) for kind in ("key", "value")]
    shapes = [[-1, heads, -1, size] for heads, *both in sizes for size in both]
    inputs = ["input_ids", "attention_mask", "position_ids", *(f"past_key_values.{name}" for name in of_layer)]
    if len(converted.inputs) != len(inputs):
        raise ExportFailed(
            f"the converted model has {len(converted.inputs)} inputs, not {len(inputs)}: it ignores some of them",
            do="Choose a model that uses its positions and its cache, such as Llama, Qwen or Mistral.",
        )
    for port, name, shape in zip(converted.inputs, inputs, [[-1, -1]] * 3 + shapes, strict=True):
        port.get_tensor().set_names({name})
        port.get_node().set_friendly_name(name)
        port.get_node().set_partial_shape(openvino.PartialShape(shape))
    for port, name in zip(converted.outputs, ["logits", *(f"present.{name}" for name in of_layer)], strict=True):
        port.get_tensor().set_names({name})
    converted.validate_nodes_and_infer_types()


def _keep_cache(converted: Any, layers: int) -> None:
    """Turns the cache's inputs and outputs into a state, which starts empty and is reordered by `beam_idx`."""
    import openvino  # noqa: PLC0415
    from openvino import opset13 as ops  # noqa: PLC0415
    from openvino._offline_transformations import apply_make_stateful_transformation  # noqa: PLC0415

    names = [f"{at}.{kind}" for at in range(layers) for kind in ("key", "value")]
    beams = ops.parameter(openvino.PartialShape([-1]), openvino.Type.i32, "beam_idx")
    beams.output(0).get_tensor().set_names({"beam_idx"})
    converted.add_parameters([beams])
    for name in names:
        port = converted.input(f"past_key_values.{name}")
        users = port.get_target_inputs()
        chosen = ops.gather(port, beams, ops.constant(0))
        for user in users:
            user.replace_source_output(chosen.output(0))
    converted.validate_nodes_and_infer_types()
    apply_make_stateful_transformation(converted, {f"past_key_values.{name}": f"present.{name}" for name in names})
    _start_empty(converted)


def _start_empty(converted: Any) -> None:
    """Sets each state's first value: no tokens, for as many samples as the input has."""
    from openvino import opset13 as ops  # noqa: PLC0415

    shape = ops.shape_of(converted.input("input_ids"), output_type="i64")
    batch = ops.gather(shape, ops.constant(np.array([0], np.int64)), ops.constant(0))
    for node in converted.get_ops():
        if node.get_type_name() != "ReadValue":
            continue
        _, heads, _, size = node.get_output_partial_shape(0)
        rest = np.array([heads.get_length(), 0, size.get_length()], np.int64)
        zero = ops.constant(0.0, dtype=node.get_output_element_type(0))
        node.set_arguments([ops.broadcast(zero, ops.concat([batch, ops.constant(rest)], axis=0))])
    converted.validate_nodes_and_infer_types()
