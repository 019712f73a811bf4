"""Small logged models, converted before there is a real one, so that a framework's first-use work is already done.

Importing is half of that work. torch also registers operators and makes tables of decompositions at its first export,
and imports its exporter only then.
"""

import functools
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import yaml

from shiplift.runtime.model.conversion import loaders
from shiplift.runtime.records.tensor import Signature, TensorSpec

_FEATURES = 8


def write_small(flavor: str, folder: Path) -> Signature | None:
    """Writes a model of a flavor to the new folder; returns its signature, or None if the flavor has no small model.

    Its input is float32 (batch, 1, 8, 8) for torch, (batch, 8) for scikit-learn.
    """
    write = _WRITERS.get(flavor)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return write(folder) if write else None


def _torch(folder: Path) -> Signature:
    import torch  # noqa: PLC0415 - only for torch models

    _read_operators_once()
    nn, sample = torch.nn, torch.zeros(2, 1, _FEATURES, _FEATURES)
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32, 2))
    program = torch.export.export(model.eval(), (sample,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    (folder / "data").mkdir(parents=True)
    torch.export.save(program, folder / "data" / "model.pt2")
    (folder / "MLmodel").write_text(yaml.safe_dump({"flavors": {"pytorch": {"model_data": "data"}}}))
    return _signature((-1, *sample.shape[1:]), ("logits",))


def _read_operators_once() -> None:
    """Makes torch read its operators once. Its exporter parses their sources at every export: 40 % of a small one.

    Of the rest, a sixth went into their table, which an export without translations of its own only reads.
    """
    from torch.onnx._internal.exporter import _registration  # noqa: PLC0415 - only for torch models

    with suppress(AttributeError):  # another release of torch, which then parses them every time
        library = _registration.onnxscript_apis
        library.get_torchlib_ops = functools.cache(library.get_torchlib_ops)
        table = _registration.ONNXRegistry
        table.from_torchlib = staticmethod(functools.cache(table.from_torchlib))


def _sklearn(folder: Path) -> Signature:
    import mlflow.sklearn  # noqa: PLC0415 - only for sklearn models
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415

    model = LogisticRegression().fit(np.eye(2, _FEATURES, dtype=np.float32), [0, 1])
    with loaders.without_shims():
        mlflow.sklearn.save_model(model, str(folder), serialization_format="skops", pip_requirements=[])
    return _signature((-1, _FEATURES), ("label",))


def _signature(shape: tuple[int, ...], outputs: tuple[str, ...]) -> Signature:
    return Signature(
        inputs=(TensorSpec(name="input", datatype="FP32", shape=shape),),
        outputs=tuple(TensorSpec(name=name, datatype="FP32", shape=(-1, 2)) for name in outputs),
    )


_WRITERS: dict[str, Callable[[Path], Signature]] = {"pytorch": _torch, "sklearn": _sklearn}
