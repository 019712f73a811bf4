"""Operators of PyTorch by families: a graph of each answers as the module does, or there is none, and that is known."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.zoo.cases import modules
from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.model import onnx_models
from shiplift.runtime.records.tensor import TensorSpec

pytest.importorskip("torch")

TOGETHER = 12  # operators in one module, since an export takes seconds whatever it exports
OPSET = 20
ENDS = (0.0, -0.0, 1.0, -1.0, 0.5, -1.5, 2.5, 2.0, 3.0, 1e3, -1e3, 80.0, -120.0, 1e-30, 20.5)
NO_GRAPH = {"i0", "ndtri", "nextafter"}  # ONNX has no such operator; the model's own library serves them
BOUNDED = {"acos", "acosh", "asin", "atanh", "erfinv", "lgamma", "log", "logit", "ndtri"}  # asked within what they take


def module_of(functions: list[Callable[[Any], Any]]) -> Any:
    import torch

    class Several(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return tuple(function(x) for function in functions)

    return Several().eval()


def rows(draw: modules.Rows, *, ends: bool) -> Any:
    """Ordinary rows and, in place of numbers of others, the ends of what an operator takes."""
    rng = np.random.default_rng(1)
    x = draw(rng, 60)
    if ends and x.dtype.kind == "f":
        chosen = rng.random(x.shape) < 0.5
        chosen[:20] = False
        x = np.where(chosen, rng.choice(np.array(ENDS, x.dtype), x.shape), x)
    return x


def wrong(named: list[tuple[str, Callable[[Any], Any]]], x: Any, folder: Path) -> list[str]:
    """The operators that the graph answers otherwise than torch, and those that have no graph."""
    from shiplift.runtime.model.conversion.torch_models import TorchModule

    module = module_of([compute for _, compute in named])
    spec = TensorSpec(name="x", datatype=onnx_datatype(x), shape=(-1, *x.shape[1:]))
    original = TorchModule(module, (spec,), tuple(f"o{at}" for at in range(len(named))))
    folder.mkdir()
    try:
        graph = original.to_onnx({"x": x}, OPSET, folder)
    except ExportFailed:
        if len(named) == 1:
            return [f"{named[0][0]} has no graph"]
        half = len(named) // 2
        return wrong(named[:half], x, folder / "left") + wrong(named[half:], x, folder / "right")
    (file := folder / "model.onnx").write_bytes(graph.SerializeToString())
    right, found = original.answer({"x": x}), onnx_models.answer(onnx_models.session(file), {"x": x})
    pairs = ((name, right[f"o{at}"], found[f"o{at}"]) for at, (name, _) in enumerate(named))
    return [f"{name} answers otherwise" for name, one, other in pairs if not same(one, other)]


def onnx_datatype(x: Any) -> Any:
    return {"float32": "FP32", "int64": "INT64"}[str(x.dtype)]


def same(right: Any, found: Any) -> bool:
    if right.dtype.kind != "f":
        return bool(np.array_equal(right, found))
    finite = right[np.isfinite(right)]
    usual = float(np.median(np.abs(finite))) if finite.size else 0.0
    return bool(np.allclose(found, right, rtol=2e-4, atol=1e-5 + 1e-4 * usual, equal_nan=True))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["elementwise", "activations"])
def test_a_graph_answers_as_torch_does_also_at_the_ends(family: str, tmp_path: Path) -> None:
    groups: dict[tuple[modules.Rows, bool], list[tuple[str, Callable[[Any], Any]]]] = {}
    for name, compute, draw in modules.FAMILIES[family]():
        groups.setdefault((draw, name not in BOUNDED), []).append((name, compute))
    found: list[str] = []
    for number, ((draw, ends), named) in enumerate(groups.items()):
        x = rows(draw, ends=ends)
        for start in range(0, len(named), TOGETHER):
            found += wrong(named[start : start + TOGETHER], x, tmp_path / f"{number}-{start}")
    known = {f"{name} has no graph" for name, _, _ in modules.FAMILIES[family]() if name in NO_GRAPH}
    assert set(found) == known
