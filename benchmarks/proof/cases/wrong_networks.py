"""Part a: networks and graphs whose rows mix, whose outputs are in another order, or whose ids have an end."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.proof.case import Case, Logged
from benchmarks.proof.cases.right_networks import graph, ids, module, normal
from benchmarks.proof.fresh import rows_like


def _wrong_axis(torch: Any) -> Any:
    """`batch_first` is left out: rows attend to each other."""
    nn = torch.nn
    layer = nn.TransformerEncoderLayer(8, 2, 16)
    return nn.Sequential(
        nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Flatten(), nn.Linear(48, 3)
    ).eval()


def _centred(torch: Any) -> Any:
    class Centred(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(6, 2)

        def forward(self, x: Any) -> Any:
            return self.head(x - 0.1 * x.mean(0, keepdim=True))

    return Centred().eval()


def _training_norm(torch: Any) -> Any:
    nn = torch.nn
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.ReLU(), nn.Linear(8, 2))


def _left_training(torch: Any) -> Any:
    """BatchNorm in training mode: `model.eval()` was forgotten."""
    nn = torch.nn
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)).train()


def _dropout(torch: Any) -> Any:
    nn = torch.nn
    return nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.Linear(16, 2)).train()


def _ranked(torch: Any) -> Any:
    class Ranked(torch.nn.Module):  # type: ignore[misc]
        """Scores relative to the best of the batch."""

        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(6, 2)

        def forward(self, x: Any) -> Any:
            scores = self.head(x)
            return scores / scores.abs().max()

    return Ranked().eval()


def _hashed(torch: Any) -> Any:
    class Hashed(torch.nn.Module):  # type: ignore[misc]
        """Ids of 64 bits, hashed to a table."""

        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = torch.nn.Embedding(997, 6), torch.nn.Linear(18, 2)

        def forward(self, ids: Any) -> Any:
            return self.head(self.table(torch.remainder(ids, 997)).flatten(1))

    return Hashed().eval()


def _large_ids(torch: Any) -> Any:
    class Parity(torch.nn.Module):  # type: ignore[misc]
        """What depends on the last bit of an id beyond 2^24."""

        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(4, 5)

        def forward(self, ids: Any) -> Any:
            return self.table(torch.bitwise_and(ids, 3)).sum(1)

    return Parity().eval()


def _embedding(torch: Any) -> Any:
    nn = torch.nn
    return nn.Sequential(nn.Embedding(20, 4), nn.Flatten(), nn.Linear(12, 2)).eval()


def _precise(torch: Any) -> Any:
    class Precise(torch.nn.Module):  # type: ignore[misc]
        """A difference of large numbers in float64."""

        def forward(self, x: Any) -> Any:
            return ((x + 1e9) - 1e9) * 3.0

    return Precise().double().eval()


def _small(_: Path) -> Logged:
    """Answers near 0.004, labelled with themselves: an error of 0.01 is all of them."""
    import torch
    from mlflow.models import infer_signature

    class Small(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))

        def forward(self, x: Any) -> Any:
            return 0.004 + 0.001 * torch.tanh(self.layers(x))

    torch.manual_seed(0)
    model, known = Small().eval(), normal(6)(np.random.default_rng(0), 400)
    with torch.inference_mode():
        answers = model(torch.from_numpy(known)).numpy()
    return Logged(
        model=model,
        options={"signature": infer_signature(known[:4], answers[:4]), "input_example": known[:4]},
        rows=lambda count, seed: rows_like(known, count, seed),
        validation={"input": known, "label": answers.ravel()},
    )


def _seeded(seed: int) -> Callable[[Any], Any]:
    def make(torch: Any) -> Any:
        torch.manual_seed(seed)
        return torch.nn.Linear(6, 3).eval()

    return make


def _outputs(order: list[str]) -> Callable[[Path], Logged]:
    """A module that returns a dict whose order is not the signature's."""

    def build(_: Path) -> Logged:
        import torch
        from mlflow.models import infer_signature

        class Heads(torch.nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.heads = torch.nn.ModuleDict({name: torch.nn.Linear(6, 2) for name in sorted(order)})

            def forward(self, x: Any) -> Any:
                return {name: self.heads[name](x) for name in order}

        torch.manual_seed(0)
        model, known = Heads().eval(), normal(6)(np.random.default_rng(0), 200)

        def answer(rows: NDArray[Any]) -> dict[str, NDArray[Any]]:
            with torch.inference_mode():
                return {name: value.numpy() for name, value in model(torch.from_numpy(rows)).items()}

        declared = answer(known[:4])
        return Logged(
            model=model,
            options={
                "signature": infer_signature(known[:4], {name: declared[name] for name in sorted(order)}),
                "input_example": known[:4],
            },
            rows=lambda count, seed: rows_like(known, count, seed),
            original=answer,
        )

    return build


def _onnx(nodes: list[tuple[Any, ...]], *, size: int = 3, batch: bool = True) -> Callable[[Path], Logged]:
    """A graph of 6 numbers with a matrix `w` of (6, 3), and some constants."""

    def build(_: Path) -> Logged:
        from mlflow.models import infer_signature
        from onnx import TensorProto

        weights = {
            "w": np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32),
            "first": np.array([0]),
            "tenth": np.array(0.1, np.float32),
        }
        shape = [None, size] if batch else [size]
        model = graph(nodes, weights, ("x", TensorProto.FLOAT, [None, 6]), ("y", TensorProto.FLOAT, shape))
        known = normal(6)(np.random.default_rng(0), 100)
        return Logged(
            model=model,
            options={
                "signature": infer_signature({"x": known[:4]}, {"y": np.zeros((4, size), np.float32)}),
                "input_example": {"x": known[:4]},
            },
            rows=lambda count, seed: {"x": rows_like(known, count, seed)},
        )

    return build


def _gathered(_: Path) -> Logged:
    """Ids of a table, of which -1 is ONNX's last row."""
    from mlflow.models import infer_signature
    from onnx import TensorProto

    table = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    nodes: list[tuple[Any, ...]] = [("Gather", ["table", "x"], ["y"], {})]
    model = graph(nodes, {"table": table}, ("x", TensorProto.INT64, [None, 2]), ("y", TensorProto.FLOAT, [None, 2, 3]))
    example = ids(20, 2)(np.random.default_rng(0), 4)
    return Logged(
        model=model,
        options={
            "signature": infer_signature({"x": example}, {"y": np.zeros((4, 2, 3), np.float32)}),
            "input_example": {"x": example},
        },
        rows=lambda count, seed: {"x": ids(20, 2, low=-20)(np.random.default_rng(seed), count)},
    )


def _shifted(torch: Any) -> Any:
    class Shifted(torch.nn.Module):  # type: ignore[misc]
        """Ids that are counted from 100: no table is as large as they say."""

        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = torch.nn.Embedding(20, 4), torch.nn.Linear(12, 2)

        def forward(self, x: Any) -> Any:
            return self.head(self.table(x - 100).flatten(1))

    return Shifted().eval()


def _sometimes_outside(make: Callable[[Any], Any], first: int = 0) -> Callable[[Path], Logged]:
    """An embedding of ids from `first` on that is asked for ids beyond its table, too: it raises."""

    def build(folder: Path) -> Logged:
        known = ids(first + 20, 3, low=first)
        logged = module(make, known)(folder)

        def rows(count: int, seed: int) -> NDArray[Any]:
            rng = np.random.default_rng(seed)
            asked = known(rng, count)
            outside = rng.random(count) < 0.1
            odd = [first - 1, first - 20, first + 20, 1 << 24, 1 << 40]
            asked[outside, 0] = rng.choice(odd, int(outside.sum()))
            return asked

        return Logged(model=logged.model, options=logged.options, rows=rows)

    return build


def _torch(name: str, about: str, build: Callable[[Path], Logged], **fields: Any) -> Case:
    return Case(name=f"a-torch-{name}", part="a", flavor="pytorch", about=about, build=build, **fields)


_FAR = ids(1 << 62, 3, low=-(1 << 40))
WRONG_NETWORKS: tuple[Case, ...] = (
    _torch("wrong-axis", "attention over the batch", module(_wrong_axis, normal(6, 8)), alone=True, fresh=500),
    _torch("centred", "centring by the batch", module(_centred, normal(6)), alone=True),
    _torch("batch-scaled", "scores relative to the batch's best", module(_ranked, normal(6)), alone=True),
    _torch("norm-without-statistics", "BatchNorm without statistics", module(_training_norm, normal(6)), alone=True),
    _torch("norm-in-training", "BatchNorm in training mode", module(_left_training, normal(6)), alone=True),
    _torch("dropout-in-training", "dropout in training mode", module(_dropout, normal(6)), alone=True),
    _torch("outputs", "a dict in another order than the signature", _outputs(["spread", "mean"])),
    _torch("three-outputs", "three outputs in another order", _outputs(["b", "c", "a"])),
    _torch("hashed-ids", "ids of 64 bits, hashed", module(_hashed, _FAR)),
    _torch("large-ids", "the last bits of ids beyond 2^24", module(_large_ids, _FAR)),
    _torch("ids-outside", "ids outside the table raise", _sometimes_outside(_embedding)),
    _torch("shifted-ids-outside", "ids outside a shifted table raise", _sometimes_outside(_shifted, 100)),
    _torch("double", "a difference of large numbers in float64", module(_precise, normal(6, kind=np.float64))),
    _torch("small-labels", "`metric: mae` on labels near 0.004", _small, spec="data: {metric: mae}"),
    _torch(
        "created-again",
        "deleted, and created again with other weights",
        module(_seeded(2), normal(6)),
        before=module(_seeded(1), normal(6)),
    ),
    Case(
        name="a-onnx-centred",
        part="a",
        flavor="onnx",
        about="centring by the batch",
        build=_onnx(
            [
                ("ReduceMean", ["x", "first"], ["mean"], {"keepdims": 1}),
                ("Sub", ["x", "mean"], ["centred"], {}),
                ("MatMul", ["centred", "w"], ["y"], {}),
            ]
        ),
        alone=True,
    ),
    Case(
        name="a-onnx-softmax",
        part="a",
        flavor="onnx",
        about="a softmax over the batch",
        build=_onnx([("MatMul", ["x", "w"], ["z"], {}), ("Softmax", ["z"], ["y"], {"axis": 0})]),
        alone=True,
    ),
    Case(
        name="a-onnx-cumulative",
        part="a",
        flavor="onnx",
        about="a running sum along the batch",
        build=_onnx([("MatMul", ["x", "w"], ["z"], {}), ("CumSum", ["z", "first"], ["y"], {})]),
        alone=True,
    ),
    Case(
        name="a-onnx-no-batch",
        part="a",
        flavor="onnx",
        about="an output without a batch axis",
        build=_onnx(
            [("MatMul", ["x", "w"], ["z"], {}), ("ReduceSum", ["z", "first"], ["y"], {"keepdims": 0})], batch=False
        ),
        alone=True,
    ),
    Case(name="a-onnx-negative-ids", part="a", flavor="onnx", about="negative ids", build=_gathered),
)
