"""Part c: PyTorch modules and ONNX graphs that treat rows one by one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.proof.case import Case, Logged
from benchmarks.proof.fresh import rows_like

_EXAMPLE = 4


def module(
    make: Callable[[Any], Any], inputs: Callable[[np.random.Generator, int], NDArray[Any]]
) -> Callable[[Path], Logged]:
    """A module of one tensor, made from `torch`, with an example that its inputs' recipe makes."""

    def build(_: Path) -> Logged:
        import torch
        from mlflow.models import infer_signature

        torch.manual_seed(0)
        made = make(torch)
        known = inputs(np.random.default_rng(0), 200)
        example = known[:_EXAMPLE]
        with torch.inference_mode():
            answer = made(torch.from_numpy(example)).numpy()
        return Logged(
            model=made,
            options={"signature": infer_signature(example, answer), "input_example": example},
            rows=lambda count, seed: fresh(known, inputs, count, seed),
        )

    return build


def fresh(known: NDArray[Any], inputs: Any, count: int, seed: int) -> NDArray[Any]:
    """Fresh floats like those known, half of them; fresh ids by the recipe alone."""
    made: NDArray[Any] = inputs(np.random.default_rng(seed), count)
    if made.dtype.kind == "f":
        made[: count // 2] = rows_like(known, count // 2, seed)
    return made


def normal(*shape: int, kind: Any = np.float32) -> Callable[[np.random.Generator, int], NDArray[Any]]:
    """Normal numbers."""
    return lambda rng, count: rng.normal(size=(count, *shape)).astype(kind)


def ids(high: int, *shape: int, low: int = 0) -> Callable[[np.random.Generator, int], NDArray[Any]]:
    """Whole numbers, their ends more often than others."""

    def made(rng: np.random.Generator, count: int) -> NDArray[Any]:
        numbers = rng.integers(low, high, (count, *shape))
        ends = rng.choice([low, high - 1], numbers.shape)
        return np.where(rng.random(numbers.shape) < 0.2, ends, numbers)

    return made


def _mlp(torch: Any) -> Any:
    nn = torch.nn
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 3), nn.Softmax(-1)).eval()


def _norm(torch: Any) -> Any:
    nn = torch.nn
    made = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 2))
    made(torch.randn(64, 6) * 3)  # the statistics of training
    return made.eval()


def _cnn(torch: Any) -> Any:
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5), nn.LogSoftmax(-1)
    ).eval()


def _recurrent(kind: str) -> Callable[[Any], Any]:
    def make(torch: Any) -> Any:
        class Reader(torch.nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.cell = getattr(torch.nn, kind)(4, 8, batch_first=True)
                self.head = torch.nn.Linear(8, 2)

            def forward(self, x: Any) -> Any:
                return self.head(self.cell(x)[0][:, -1])

        return Reader().eval()

    return make


def _attention(torch: Any) -> Any:
    nn = torch.nn
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.Sequential(
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Flatten(), nn.Linear(48, 3)
    ).eval()


def _table(torch: Any) -> Any:
    nn = torch.nn
    return nn.Sequential(nn.Embedding(50, 4), nn.Flatten(), nn.Linear(20, 3)).eval()


def _bag(torch: Any) -> Any:
    class Bag(torch.nn.Module):  # type: ignore[misc]
        """Means of embeddings; 0 is padding."""

        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(30, 6, padding_idx=0)
            self.head = torch.nn.Linear(6, 2)

        def forward(self, ids: Any) -> Any:
            mask = (ids != 0).unsqueeze(-1).to(torch.float32)
            return self.head((self.table(ids) * mask).sum(1) / mask.sum(1).clamp(min=1))

    return Bag().eval()


def _double(torch: Any) -> Any:
    nn = torch.nn
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).double().eval()


def _wide(torch: Any) -> Any:
    nn = torch.nn
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 10)).eval()


def _residual(torch: Any) -> Any:
    class Block(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = (torch.nn.Conv2d(2, 2, 3, padding=1) for _ in range(2))

        def forward(self, x: Any) -> Any:
            return (x + self.two(torch.relu(self.one(x)))).mean((2, 3))

    return Block().eval()


def graph(nodes: list[tuple[Any, ...]], weights: dict[str, Any], x: Any, y: Any) -> Any:
    """An ONNX model; a node is (type, inputs, outputs, attributes), `x` and `y` are (name, type, shape)."""
    from onnx import helper, numpy_helper

    made = helper.make_graph(
        [helper.make_node(kind, given, taken, **attributes) for kind, given, taken, attributes in nodes],
        "graph",
        [helper.make_tensor_value_info(*x)],
        [helper.make_tensor_value_info(*each) for each in (y if isinstance(y, list) else [y])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(made, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])


def _onnx_mlp(_: Path) -> Logged:
    from mlflow.models import infer_signature
    from onnx import TensorProto

    rng = np.random.default_rng(0)
    weights = {
        "w": rng.normal(size=(6, 8)).astype(np.float32),
        "b": rng.normal(size=8).astype(np.float32),
        "v": rng.normal(size=(8, 3)).astype(np.float32),
        "c": rng.normal(size=3).astype(np.float32),
    }
    nodes: list[tuple[Any, ...]] = [
        ("Gemm", ["x", "w", "b"], ["h"], {}),
        ("Relu", ["h"], ["r"], {}),
        ("Gemm", ["r", "v", "c"], ["z"], {}),
        ("Softmax", ["z"], ["y"], {"axis": -1}),
    ]
    model = graph(nodes, weights, ("x", TensorProto.FLOAT, [None, 6]), ("y", TensorProto.FLOAT, [None, 3]))
    known = normal(6)(rng, 100)
    return Logged(
        model=model,
        options={
            "signature": infer_signature({"x": known[:4]}, {"y": np.zeros((4, 3), np.float32)}),
            "input_example": {"x": known[:4]},
        },
        rows=lambda count, seed: {"x": rows_like(known, count, seed)},
    )


def _two_outputs(_: Path) -> Logged:
    """Two outputs of one shape, in the signature's order."""
    from mlflow.models import infer_signature
    from onnx import TensorProto

    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=(6, 2)).astype(np.float32) for name in ("v", "w")}
    nodes: list[tuple[Any, ...]] = [("MatMul", ["x", "v"], ["mean"], {}), ("MatMul", ["x", "w"], ["spread"], {})]
    outputs = [(name, TensorProto.FLOAT, [None, 2]) for name in ("mean", "spread")]
    model = graph(nodes, weights, ("x", TensorProto.FLOAT, [None, 6]), outputs)
    known = normal(6)(rng, 100)
    zeros = np.zeros((4, 2), np.float32)
    return Logged(
        model=model,
        options={
            "signature": infer_signature({"x": known[:4]}, {"mean": zeros, "spread": zeros}),
            "input_example": {"x": known[:4]},
        },
        rows=lambda count, seed: {"x": rows_like(known, count, seed)},
    )


def _torch(name: str, about: str, make: Callable[[Any], Any], inputs: Any, **fields: Any) -> Case:
    return Case(name=name, part="c", flavor="pytorch", about=about, build=module(make, inputs), **fields)


RIGHT_NETWORKS: tuple[Case, ...] = (
    _torch("torch-mlp", "a perceptron with a softmax", _mlp, normal(6)),
    _torch("torch-batchnorm", "BatchNorm and dropout, `eval()`", _norm, normal(6)),
    _torch("torch-cnn", "a small CNN", _cnn, normal(1, 8, 8)),
    _torch("torch-lstm", "an LSTM", _recurrent("LSTM"), normal(5, 4)),
    _torch("torch-gru", "a GRU", _recurrent("GRU"), normal(5, 4)),
    _torch("torch-attention", "attention along the sequence", _attention, normal(6, 8)),
    _torch("torch-table", "an embedding of 50 ids", _table, ids(50, 5)),
    _torch("torch-bag", "the mean of embeddings without padding", _bag, ids(30, 7)),
    _torch("torch-double", "a module in float64", _double, normal(6, kind=np.float64)),
    _torch("torch-wide", "a wide perceptron", _wide, normal(64)),
    _torch("torch-residual", "convolutions with a residual", _residual, normal(2, 6, 6)),
    Case(name="onnx-mlp", part="c", flavor="onnx", about="a perceptron as ONNX", build=_onnx_mlp),
    Case(name="onnx-two-outputs", part="c", flavor="onnx", about="two outputs of one shape", build=_two_outputs),
)
