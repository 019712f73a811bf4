"""A bundle on disk: a Triton repository with a pipeline's members and its graph, written completely or not at all."""

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tritonclient.grpc import model_config_pb2 as pb

from shiplift.runtime.base.errors import UsageError
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.composition.checked import CheckedPipeline
from shiplift.runtime.guest import pipelines, python
from shiplift.runtime.model.python import layers
from shiplift.runtime.serving.bundles import graph
from shiplift.runtime.serving.bundles.names import members_by_name
from shiplift.runtime.serving.triton.config import render
from shiplift.runtime.serving.triton.repository import install, serve_only
from shiplift.runtime.spec.pipeline import PipelineSpec
from shiplift.runtime.store.artifacts import ArtifactStore

PIPELINE_MODEL = Path(pipelines.__file__).with_name("pipeline_model.py")
PIPELINE_POOL = Path(pipelines.__file__).with_name("pipeline_pool.py")
PIPELINE_WORKER = Path(pipelines.__file__).with_name("pipeline_worker.py")
PIPELINE_KEEPER = Path(python.__file__).with_name("keeper.py")
PIPELINE_USE = Path(pipelines.__file__).with_name("step_use.py")
PIPELINE_MESSAGES = Path(pipelines.__file__).with_name("pipeline_messages.py")
WITNESS_MODEL = Path(pipelines.__file__).with_name("witness_model.py")
PLAN = "pipeline.json"
_POOL = "pool.json"
_PYTHON = "python"  # the folder of the author's files, beside the plan


def write_bundle(
    to: Path,
    spec: PipelineSpec,
    checked: CheckedPipeline,
    sources: Mapping[str, bytes],
    store: ArtifactStore,
    version: int = graph.VERSION,
) -> dict[str, str]:
    """Writes the repository into the new or empty folder `to`; returns a description of each model by name.

    Members come first, since the graph can't be loaded without them. `version` is the pipeline's: the graph is replaced
    under the same name, so each of its versions needs its own number.

    Raises:
        UsageError: the folder is not empty.
        ArtifactCorrupt: a member's package is missing or altered.
        StorageFull: no space is left.
    """
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UsageError(f"{to} already exists and is not an empty folder", do="Name a new folder with --out.")
    to.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{to.name}-", dir=to.parent) as scratch:
        repository = Path(scratch) / "repository"
        repository.mkdir()
        models: dict[str, str] = {}
        for name, package in members_by_name(checked).items():
            tree = store.fetch(package.repository, Path(scratch) / name)
            for ending in (*package.called_endings, ""):
                install(tree, repository, source=serving_name(package.model) + ending, name=name + ending)
                serve_only(repository, name + ending, package.version)
            models |= {name + ending: f"the graph of {package.model}" for ending in package.called_endings}
            if (tree / layers.FOLDER).is_dir():
                shutil.copytree(tree / layers.FOLDER, repository / layers.FOLDER, dirs_exist_ok=True)
            models[name] = f"{package.model} {package.version}, {package.described}"
        models |= _write_graph(repository, spec, checked, sources, version)
        if to.exists():
            to.rmdir()
        repository.rename(to)
    return models


def _write_graph(
    repository: Path, spec: PipelineSpec, checked: CheckedPipeline, sources: Mapping[str, bytes], version: int
) -> dict[str, str]:
    name = serving_name(spec.name)
    plan = json.dumps(graph.plan(spec, checked), indent=1, sort_keys=True) + "\n"
    if checked.way == "ensemble":
        witness = graph.witness(spec, checked)
        shutil.copyfile(WITNESS_MODEL, _write(repository, witness, graph.VERSION) / "model.py")
        (_write(repository, graph.ensemble(spec, checked, version), version) / PLAN).write_text(plan)
        return {witness.name: "says which bundle answers", name: "the pipeline, as an ensemble"}
    models = _write_pool(repository, spec, checked, sources) if spec.functions else {}
    folder = _write(repository, graph.bls(spec, version), version)
    _copy(folder, PIPELINE_MODEL, PIPELINE_MESSAGES)
    (folder / PLAN).write_text(plan)
    return models | {name: "the pipeline, in BLS"}


def _write_pool(
    repository: Path, spec: PipelineSpec, checked: CheckedPipeline, sources: Mapping[str, bytes]
) -> dict[str, str]:
    config = graph.pool(spec, checked)
    folder = _write(repository, config, graph.VERSION)
    _copy(folder, PIPELINE_POOL, PIPELINE_MESSAGES, PIPELINE_WORKER, PIPELINE_KEEPER, PIPELINE_USE)
    (folder / _POOL).write_text(json.dumps(graph.pooled(spec), indent=1, sort_keys=True) + "\n")
    for path, source in sources.items():
        file = folder / _PYTHON / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(source)
    return {config.name: f"runs its Python, {spec.workers} at once"}


def _copy(folder: Path, model: Path, *beside: Path) -> None:
    """Copies a backend's `model.py` and what it imports into a version's folder."""
    shutil.copyfile(model, folder / "model.py")
    for file in beside:
        shutil.copyfile(file, folder / file.name)


def _write(repository: Path, config: pb.ModelConfig, version: int) -> Path:
    """Writes a model's configuration; returns the folder of its version."""
    folder = repository / str(config.name) / str(version)
    folder.mkdir(parents=True)
    (folder.parent / "config.pbtxt").write_text(render(config))
    return folder
