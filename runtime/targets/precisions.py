"""The sandboxed half of quantize: checks that a target can run the model, then builds every precision it allows."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from shiplift.runtime.model.small_graph import write_small_graph, write_small_samples
from shiplift.runtime.model.tensors import DataLimits
from shiplift.runtime.precision.ladder import Builder, LoggedDataset, Text
from shiplift.runtime.precision.trees_rung import Trees
from shiplift.runtime.records.precision import Precision
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.records.trees import TreesForm
from shiplift.runtime.spec.model import Data, Quantization
from shiplift.runtime.spec.target import Target
from shiplift.runtime.targets.operators import require_operators

PRELOAD = ("onnxruntime.quantization", "onnxruntime.transformers.float16", "openvino")
_SAMPLES = 16


def build_precisions(  # noqa: PLR0913 - an entry takes JSON by name
    *,
    model: str,
    reference: str,
    work: str,
    validation: list[str] | None,
    calibration: list[str] | None,
    signature: dict[str, Any],
    target: dict[str, Any],
    data: dict[str, Any],
    settings: dict[str, Any],
    memory_mb: int,
    modelopt: str,
    built_on: str,
    unpacked_mb: int,
    samples: int,
    text: dict[str, Any] | None,
    trees: dict[str, Any] | None,
    metric: str,
    precision: Precision,
) -> dict[str, Any]:
    """Builds the ladder of a target; returns a `Ladder` as JSON. A sandbox entry.

    `validation` and `calibration` are a file and its logged name, which may unpack to `unpacked_mb` MiB and hold
    `samples`. `text` is for a model that takes text: the `signature` that clients see, and the folder `front`. `trees`
    is for an ensemble of trees: its checkpoint `file`, and its `form`. `metric` is the file of the author's own metric,
    or empty, and `precision` that of the model. See `Builder` for the rest.

    Raises:
        ExportFailed: fp32 does not load, or needs a newer ONNX Runtime than the target has.
        DataInvalid: the logged data do not match the model.
        MissingTool: the target is a GPU, and this environment can't run models on GPUs.
    """
    wanted = Target.model_validate(target)
    require_operators(Path(model), wanted)
    builder = Builder(
        model=Path(model),
        reference=Path(reference),
        work=Path(work),
        signature=Signature.model_validate(signature),
        target=wanted,
        data=Data.model_validate(data),
        settings=Quantization.model_validate(settings),
        memory_mb=memory_mb,
        validation=_dataset(validation),
        calibration=_dataset(calibration),
        modelopt=modelopt,
        built_on=built_on,
        metric_file=metric,
        precision=precision,
        text=_text(text),
        trees=Trees(file=Path(trees["file"]), form=TreesForm.model_validate(trees["form"])) if trees else None,
        limits=DataLimits(unpacked_bytes=unpacked_mb << 20, samples=samples),
    )
    return builder.build().model_dump(mode="json")


def _text(seen: dict[str, Any] | None) -> Text | None:
    if seen is None:
        return None
    return Text(inputs=Signature.model_validate(seen["signature"]).inputs, front=Path(seen["front"]))


def _dataset(logged: list[str] | None) -> LoggedDataset | None:
    return LoggedDataset(file=Path(logged[0]), name=logged[1]) if logged else None


def rehearse(_flavor: str) -> None:
    """Builds and scores the precisions of a small graph: both engines have then done what only the first costs."""
    _rehearsed()


@cache
def _rehearsed() -> None:
    """The rehearsal, once: it is the same for every flavor."""
    with TemporaryDirectory() as name:
        work = Path(name)
        model = work / "fp32" / "model.onnx"
        model.parent.mkdir()
        signature = write_small_graph(model)
        labels = np.arange(_SAMPLES) % 2
        validation = write_small_samples(work / "validation.npz", _SAMPLES, label=labels)
        Builder(
            model=model,
            reference=write_small_samples(work / "reference.npz", _SAMPLES, prefix="input/"),
            work=work,
            signature=signature,
            target=Target(),
            data=Data(),
            settings=Quantization(max_score_drop=1),  # as built: no layer is left in float
            memory_mb=1024,
            validation=LoggedDataset(file=validation, name=validation.name),
            limits=DataLimits(),
        ).rehearse()
