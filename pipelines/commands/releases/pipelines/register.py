"""Registering a pipeline as the next version of its own registered model. That starts its release."""

from pathlib import Path

import yaml

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.releases.pipelines.check import Composed, require_sound
from shiplift.pipelines.engines.protocol import Engine
from shiplift.runtime.admission.pipelines import EXAMPLE_FILE
from shiplift.runtime.base.errors import UsageError
from shiplift.runtime.records.model import PIPELINE
from shiplift.runtime.spec.document import parse
from shiplift.runtime.spec.pipeline import PIPELINE_FILE
from shiplift.runtime.store.registry.terms import FOLDER, PIPELINE_TAG

_METADATA, _SPEC_FILE = "MLmodel", "shiplift.yaml"
_MAX_DATA_BYTES = 256 << 20


def register(
    engine: Engine, composed: Composed, file: Path, *, example: Path | None, validation: Path | None, spec: Path | None
) -> str:
    """Registers a sound pipeline with its Python files, data and release spec; returns `NAME/VERSION`.

    Without a `spec`, the `shiplift.yaml` beside the pipeline is logged with it, if there is one.

    Raises:
        SpecInvalid: the pipeline's check found mistakes, or the release spec is wrong.
        UsageError: a file can't be read.
        NotAdmitted: the registry stores files in a place that can't be written from here.
    """
    require_sound(composed)
    files = {
        _METADATA: yaml.safe_dump({"flavors": {PIPELINE: {"file": PIPELINE_FILE}}}).encode(),
        PIPELINE_FILE: edge.read(file).encode(),
        **composed.code,
    }
    beside = file.parent / _SPEC_FILE
    text = edge.read(spec or beside) if spec or beside.is_file() else ""
    wanted = parse(text)
    if text:
        files[f"{FOLDER}/{_SPEC_FILE}"] = text.encode()
    if example:
        files[EXAMPLE_FILE] = _data(example)
    if validation:
        files[wanted.data.validation] = _data(validation)
    name = composed.written.spec.name
    version = engine.register(name, files, {PIPELINE_TAG: "yes"})
    edge.say(f"registered {name} version {version}, bundle {composed.checked.digest}")
    return f"{name}/{version}"


def _data(file: Path) -> bytes:
    try:
        size = file.stat().st_size
        if size > _MAX_DATA_BYTES:
            raise UsageError(
                f"{file} has {size >> 20} MiB, the limit is {_MAX_DATA_BYTES >> 20}", do="Use fewer samples."
            )
        return file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file} can't be read: {error.strerror}", do="Check its name.") from error
