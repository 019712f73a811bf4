"""Pipelines of models as registered versions: what such a version's files say, and whether a site accepts it.

A version has its definition, the Python files that the definition names, and example requests. It is not converted: the
members are looked up in production when the pipeline is packaged. Its Python is read here and never run.
"""

from pathlib import Path

import numpy as np

from shiplift.runtime.base.errors import NotAdmitted, SpecInvalid
from shiplift.runtime.composition.check import check
from shiplift.runtime.composition.signature import pipeline_signature
from shiplift.runtime.model.contracts import LoggedModel, has_flavor
from shiplift.runtime.model.tensors import Arrays, as_input, fits, load_npz
from shiplift.runtime.records.model import PIPELINE
from shiplift.runtime.records.tensor import FLOATS, TensorSpec
from shiplift.runtime.store.pipelines import read_definition

EXAMPLE_FILE = "example.npz"
_DO = "Register it with arrays by input name: `shiplift pipeline release pipeline.yaml --example requests.npz`."


def is_pipeline(folder: Path) -> bool:
    """Whether the model that was logged in a folder is a pipeline.

    Raises:
        NotAdmitted: its `MLmodel` file is missing, or can't be read.
    """
    return has_flavor(folder, PIPELINE)


def read_pipeline(folder: Path) -> tuple[LoggedModel, tuple[str, ...]]:
    """The contract of the pipeline in `folder`, and the paths of its Python files. Runs in the sandbox.

    Raises:
        SpecInvalid: its graph has mistakes; all are listed, except those that only its members reveal.
        NotAdmitted, DataInvalid: it has no usable example.
    """
    pipeline = read_definition(folder)
    spec = pipeline.written.spec
    if problems := check(pipeline.written, {}, pipeline.sources).problems:
        raise SpecInvalid("\n".join(map(str, problems)), do="Correct them, and register the pipeline again.")
    signature = pipeline_signature(spec)
    for tensor in signature.inputs:
        if tensor.shape[0] not in (-1, 1):
            raise SpecInvalid(
                f"input {tensor.name!r} has {tensor.shape[0]} rows in every request: shape {list(tensor.shape)}",
                do="Give it a first dimension of 1 or -1, which counts rows.",
            )
    example = logged_requests(folder / EXAMPLE_FILE, signature.inputs, _DO)
    return LoggedModel(flavor=PIPELINE, signature=signature, example=example), tuple(pipeline.sources)


def logged_requests(file: Path, inputs: tuple[TensorSpec, ...], do: str) -> Arrays | None:
    """The logged requests, one row of each input for each request; None if there are none. `do` is the advice.

    Raises:
        NotAdmitted: they are not what the inputs take.
    """
    if not file.is_file():
        return None
    arrays = load_npz(file)
    if missing := [spec.name for spec in inputs if spec.name not in arrays]:
        raise NotAdmitted(f"{EXAMPLE_FILE} lacks the input {missing[0]!r}", do=do)
    example = {spec.name: as_input(arrays[spec.name], spec) for spec in inputs}
    for spec in inputs:
        array = example[spec.name]
        if not array.ndim or not len(array) or not fits(array[:1], spec):
            raise NotAdmitted(
                f"{EXAMPLE_FILE} has {spec.name!r} of shape {array.shape}: the model takes rows of {spec.shape[1:]}",
                do=do,
            )
        if spec.datatype in FLOATS and not np.isfinite(array).all():
            raise NotAdmitted(f"{EXAMPLE_FILE} holds NaN or infinity in {spec.name!r}", do=do)
    if len({len(array) for array in example.values()}) > 1:
        raise NotAdmitted(f"the inputs in {EXAMPLE_FILE} have different numbers of rows", do=do)
    return example
