"""Pipelines of models as registered versions: what such a version's files say, and whether a site takes it.

A version has its definition, the Python files that it names, and example requests. Nothing of it is converted: what its
members are is found out when it is packaged, from production. Its Python is read here and never run.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shiplift.runtime.base.errors import NotAdmitted, PolicyRefused, SpecInvalid
from shiplift.runtime.base.files import Irregular, read_regular
from shiplift.runtime.composition.check import check
from shiplift.runtime.composition.checked import Unusable
from shiplift.runtime.composition.signature import signature_of
from shiplift.runtime.model.contracts import LoggedModel, metadata
from shiplift.runtime.model.tensors import Arrays, as_input, dump_npz, fits, load_npz
from shiplift.runtime.records.model import PIPELINE, Contract, Exported, ModelVersion
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.tensor import TensorSpec
from shiplift.runtime.spec.document import MAX_SPEC_BYTES, ReleaseSpec
from shiplift.runtime.spec.pipeline import PIPELINE_FILE, PipelineSpec, Written, parse
from shiplift.runtime.store.artifacts import ArtifactStore

EXAMPLE_FILE = "example.npz"
MAX_SOURCE_BYTES = 1 << 20
_DO = "Register it with arrays by input name: `shiplift pipeline register pipeline.yaml --example requests.npz`."


@dataclass(frozen=True, kw_only=True)
class Definition:
    """A pipeline as it was written, and its Python files by their paths beside it, or why they can't be read."""

    written: Written
    sources: dict[str, bytes | Unusable]

    @property
    def code(self) -> dict[str, bytes]:
        """The Python files that can be read."""
        return {path: source for path, source in self.sources.items() if isinstance(source, bytes)}


def definition(text: str, folder: Path) -> Definition:
    """The pipeline that a text defines, with its files from a folder.

    Raises:
        SpecInvalid: it is not YAML, or has wrong fields.
    """
    written = parse(text)
    return Definition(written=written, sources=_sources(folder, written.spec))


def read_definition(folder: Path) -> Definition:
    """The pipeline that was logged in a folder.

    Raises:
        SpecInvalid: there is none, or it can't be read.
    """
    try:
        text = read_regular(folder / PIPELINE_FILE, MAX_SPEC_BYTES).decode(errors="replace")
    except (Irregular, OSError) as error:
        raise SpecInvalid(f"{PIPELINE_FILE} can't be read: {error}", do="Register the pipeline again.") from error
    return definition(text, folder)


def _sources(folder: Path, spec: PipelineSpec) -> dict[str, bytes | Unusable]:
    """The Python files of a pipeline, or why they can't be read; none of it is run or parsed here."""
    return {step.python: _source(folder / step.python) for step in spec.steps.values() if step.python}


def _source(file: Path) -> bytes | Unusable:
    try:
        return read_regular(file, MAX_SOURCE_BYTES)
    except Irregular as error:
        return Unusable(what=f"the file can't be read: {error}", do="Put a plain file beside the pipeline.")
    except OSError as error:
        return Unusable(what=f"{file.name} can't be read: {error.strerror}", do="Put it beside the pipeline.")


# --- admission --------------------------------------------------------------------------------------------------------


def is_pipeline(folder: Path) -> bool:
    """Whether the model that was logged in a folder is a pipeline.

    Raises:
        NotAdmitted: its `MLmodel` file is missing, or can't be read.
    """
    flavors = metadata(folder).get("flavors")
    return isinstance(flavors, dict) and PIPELINE in flavors


def read_pipeline(folder: Path) -> tuple[LoggedModel, tuple[str, ...]]:
    """The contract of the pipeline in `folder`, and the paths of its Python files. Called in the sandbox.

    Raises:
        SpecInvalid: its graph has mistakes; all are listed, but for those that only its members show.
        NotAdmitted, DataInvalid: it has no usable example.
    """
    pipeline = read_definition(folder)
    spec = pipeline.written.spec
    if problems := check(pipeline.written, {}, pipeline.sources).problems:
        raise SpecInvalid("\n".join(map(str, problems)), do="Correct them, and register the pipeline again.")
    signature = signature_of(spec)
    for tensor in signature.inputs:
        if tensor.shape[0] not in (-1, 1):
            raise SpecInvalid(
                f"input {tensor.name!r} has {tensor.shape[0]} rows in every request: shape {list(tensor.shape)}",
                do="Give it a first dimension of 1 or -1, which counts rows.",
            )
    example = _example(folder / EXAMPLE_FILE, signature.inputs)
    return LoggedModel(flavor=PIPELINE, signature=signature, example=example), tuple(pipeline.sources)


def _example(file: Path, inputs: tuple[TensorSpec, ...]) -> Arrays | None:
    """The logged requests, one row of each input for each; None: there are none."""
    if not file.is_file():
        return None
    arrays = load_npz(file)
    if missing := [spec.name for spec in inputs if spec.name not in arrays]:
        raise NotAdmitted(f"{EXAMPLE_FILE} lacks the input {missing[0]!r}", do=_DO)
    example = {spec.name: as_input(arrays[spec.name], spec) for spec in inputs}
    for spec in inputs:
        array = example[spec.name]
        if not array.ndim or not len(array) or not fits(array[:1], spec):
            raise NotAdmitted(
                f"{EXAMPLE_FILE} has {spec.name!r} of shape {array.shape}: the pipeline takes rows of {spec.shape[1:]}",
                do=_DO,
            )
        if spec.datatype in ("FP16", "FP32", "FP64") and not np.isfinite(array).all():
            raise NotAdmitted(f"{EXAMPLE_FILE} holds NaN or infinity in {spec.name!r}", do=_DO)
    if len({len(array) for array in example.values()}) > 1:
        raise NotAdmitted(f"the inputs in {EXAMPLE_FILE} have different numbers of rows", do=_DO)
    return example


def check_pipeline(site: Site, spec: ReleaseSpec, code: tuple[str, ...]) -> None:
    """Whether a site and a release's spec let a pipeline with these Python files be released.

    Raises:
        NotAdmitted: the site serves no pipelines.
        PolicyRefused: the site lets no author's Python run.
        SpecInvalid: the spec asks for something that only a model has.
    """
    if not site.place.pipelines:
        raise NotAdmitted(
            "pipelines of models are released on one machine, not on a cluster yet",
            do="Release it with the local engine, or release its members.",
        )
    if code and "sandbox" not in site.policy.python:
        raise PolicyRefused(
            f"the pipeline runs its author's code ({', '.join(code)}), and `policy.python` does not allow `sandbox`",
            do="Do without Python steps, or ask whoever runs this site to change its policy.",
        )
    asked = {
        "export.outputs": spec.export.outputs, "export.postprocess": spec.export.postprocess,
        "export.torchscript": spec.export.torchscript, "serving.sequence_batching": spec.serving.sequence_batching,
        "serving.lengths": spec.serving.lengths, "serving.tensors": spec.serving.tensors,
    }  # fmt: skip
    if name := next((name for name, value in asked.items() if value), ""):
        raise SpecInvalid(f"`{name}` is set, but a pipeline has no graph of its own", do="Leave it out.")
    if len(spec.targets) > 1:
        raise SpecInvalid(
            f"the spec has {len(spec.targets)} targets, and a pipeline is released for one: that of its members",
            do="Name one target.",
        )


def export_pipeline(site: Site, version: ModelVersion, contract: Contract) -> Exported:
    """The pipeline as it was logged, with its requests: there is nothing to convert, and so no parity to prove."""
    store = ArtifactStore(site.artifacts_uri)
    example = load_npz(store.read(contract.example))
    reference = store.put_bytes(dump_npz({f"input/{name}": array for name, array in example.items()}))
    return Exported(
        model=version.files, signature=contract.signature, opset=0, graph=version.digest, composes=True, parity=(),
        reference=reference, notes=contract.notes,
    )  # fmt: skip
