"""Programs of PyTorch in training mode, in which dropout draws and BatchNorm takes the statistics of the batch."""

from collections.abc import Iterator
from typing import Any

from shiplift.runtime.base import advice
from shiplift.runtime.base.errors import ExportFailed

_TRAINED = {  # by operator: the layer, and the places of arguments that all have a value if it is in training mode
    "aten.dropout.default": ("dropout", (1, 2)),
    "aten.native_dropout.default": ("dropout", (1, 2)),
    "aten.batch_norm.default": ("BatchNorm", (3, 5)),
    "aten._native_batch_norm_legit.default": ("BatchNorm", (3, 5)),
    "aten._native_batch_norm_legit_functional.default": ("BatchNorm", (3, 5)),
}


def require_evaluating(program: Any) -> None:
    """Checks that a program of `torch.export` has no layer in training mode, in which it can't be switched off.

    BatchNorm without statistics of its own always takes the batch's: that is not a question of a mode.

    Raises:
        ExportFailed: a layer is in training mode.
    """
    found = list(_training(program))
    if found:
        more = f", and {len(found) - 1} more" if len(found) > 1 else ""
        raise ExportFailed(
            f"the module was exported in training mode: {found[0]}{more}",
            do=advice.CALL_EVAL,
        )


def _training(program: Any) -> Iterator[str]:
    for node in program.graph.nodes:
        layer, places = _TRAINED.get(str(node.target), ("", ()))
        if layer and all(len(node.args) > place and node.args[place] for place in places):
            yield f"{layer}{_where(node)}"


def _where(node: Any) -> str:
    """The name of a node's module, if the program knows it."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(stack[-1][0]) if stack else ""
    return f" in `{path}`" if path else ""
