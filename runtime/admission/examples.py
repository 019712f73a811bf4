"""An input example for a version that was logged without one: from its program's file, or made from its signature.

MLflow keeps no example for a model with several input tensors, although `torch.export` wrote one into the file. This
module reads it in the sandbox, after the scan has judged that file.
"""

import io
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.base.errors import NotAdmitted
from shiplift.runtime.model.contracts import LoggedModel, check_example, metadata
from shiplift.runtime.model.tensors import Arrays, as_input, numpy_type
from shiplift.runtime.model.text.images_made import made_images
from shiplift.runtime.model.text.tasks import IMAGE_TASKS, TEXT_FLAVORS, example_texts, task_of
from shiplift.runtime.records.model import ADOPTED, PIPELINE
from shiplift.runtime.records.tensor import TensorSpec

_SAMPLES = 4
_SEED = 20240229
_MAX_BYTES = 256 << 20
_DO = "Log one: `log_model(..., input_example=x)` with the arrays or tensors that the model takes."
_REGISTER = "Register the pipeline with some: `shiplift pipeline release pipeline.yaml --example requests.npz`."
_ADOPT = "Adopt it with some: `shiplift adopt DIR --model NAME --example requests.npz`."
_DO_OTHERS: dict[str, str] = {PIPELINE: _REGISTER, ADOPTED: _ADOPT}
_FROM_PROGRAM = "The input example is the one in the pt2 file: MLflow kept none."
_FROM_SIGNATURE = (
    "The version has no input example, so one was made from its signature: random numbers. Log an example to check "
    "parity and load with realistic values."
)
_OUR_IMAGES = (
    "The version has no input example, so Shiplift's own images, which are noise, were used. Log some: "
    "`log_model(..., input_example=[..])` with JPEG or PNG files as base64."
)
_OUR_TEXTS = "The version has no input example, so Shiplift's own sentences were used. Log one with real texts."


def missing_example(folder: Path, logged: LoggedModel) -> tuple[Arrays, str]:
    """An example for a version without one, and a note that says where it comes from.

    Raises:
        NotAdmitted: the program's example does not match the signature, or the signature does not determine one.
    """
    if logged.flavor == "pytorch" and (example := _of_program(folder, logged.signature.inputs)):
        check_example(example, logged.signature.inputs, _DO)
        return example, _FROM_PROGRAM
    if logged.flavor in TEXT_FLAVORS:
        task = task_of(metadata(folder), logged.flavor)
        inputs = logged.signature.inputs
        if task in IMAGE_TASKS:
            return {spec.name: np.array(made_images(), dtype=object).reshape(-1, 1) for spec in inputs}, _OUR_IMAGES
        texts = example_texts(folder, task)
        return {spec.name: np.roll(texts, at, axis=0) for at, spec in enumerate(inputs)}, _OUR_TEXTS
    rng, do = np.random.default_rng(_SEED), _DO_OTHERS.get(logged.flavor, _DO)
    return {spec.name: _made(spec, rng, do) for spec in logged.signature.inputs}, _FROM_SIGNATURE


def _of_program(folder: Path, inputs: tuple[TensorSpec, ...]) -> Arrays | None:
    """The example inputs in a pt2 file, named by the signature, in order or by keyword; None if there are none."""
    for file in sorted(folder.glob("**/*.pt2")):
        with zipfile.ZipFile(file) as archive:
            members = [entry for entry in archive.infolist() if "/sample_inputs/" in entry.filename]
            if members and members[0].file_size <= _MAX_BYTES:
                return _read(archive.read(members[0]), inputs)
    return None


def _read(body: bytes, inputs: tuple[TensorSpec, ...]) -> Arrays | None:
    import torch  # noqa: PLC0415 - only for such models

    try:
        positional, keywords = torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
        names = [spec.name for spec in inputs if spec.name not in keywords]
        tensors = dict(zip(names, positional, strict=True)) | dict(keywords)
        return {spec.name: as_input(_array(tensors[spec.name]), spec) for spec in inputs}
    except Exception as error:  # a damaged file can make torch raise anything
        reason = " ".join(str(error).split())[:200]
        raise NotAdmitted(
            f"the example inputs in the pt2 file do not match the signature: {type(error).__name__}: {reason}", do=_DO
        ) from error


def _array(value: Any) -> NDArray[Any]:
    return np.asarray(value.detach().numpy() if hasattr(value, "detach") else value)


def _made(spec: TensorSpec, rng: np.random.Generator, do: str) -> NDArray[Any]:
    """Random values for an input whose sizes are all known, except the batch's.

    Integers are 0 and 1, which are valid as indices, masks and counts; bytes are arbitrary.
    """
    if spec.datatype == "BYTES" or -1 in spec.shape[1:]:
        what = "text" if spec.datatype == "BYTES" else f"of the shape {spec.shape}"
        raise NotAdmitted(
            f"the version has no input example, and its signature determines none: {spec.name!r} is {what}", do=do
        )
    kind = numpy_type(spec.datatype)
    shape = (_SAMPLES if spec.shape[0] == -1 else spec.shape[0], *spec.shape[1:])
    if (size := math.prod(shape) * kind.itemsize) > _MAX_BYTES:
        raise NotAdmitted(
            f"an input example made from the signature would take {size} bytes for {spec.name!r}, the limit is "
            f"{_MAX_BYTES}",
            do=do,
        )
    if kind.kind == "f":
        return rng.standard_normal(shape).astype(kind)
    return rng.integers(0, 256 if spec.datatype == "UINT8" else 2, shape).astype(kind)
