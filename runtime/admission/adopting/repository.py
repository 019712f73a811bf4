"""A whole Triton model repository: its models and how they call each other, what can be served, and what is wrong.

It reads configurations, names and, if a configuration leaves out the tensors, a graph's. It runs nothing.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from google.protobuf import text_format

from shiplift.runtime.admission.adopting.gains import gains
from shiplift.runtime.admission.adopting.model_folder import (
    CONFIG,
    ENSEMBLE,
    MODEL_FILES,
    PYTHON,
    Infer,
    ModelFolder,
    line_of,
    read_folder,
)
from shiplift.runtime.base.files import Irregular, TreeFile, read_regular, regular_files
from shiplift.runtime.records.adopted import FoundModel, FoundRepository, Mistake

MAX_FILE_MB = 2048
_MAX_SOURCE_BYTES = 4 << 20
_BLS = re.compile(rb"\bInferenceRequest\s*\(|\.(async_)?exec\s*\(")
_FOLDER = "Name the folder that holds the models' folders."
_COPY = "Adopt a copy with files in place of links: `cp -rL DIR COPY`."


def read_repository(root: Path, infer: Infer) -> FoundRepository:
    """What is in the repository at `root`; `infer` is as for `read_folder`."""
    try:
        files = regular_files(root)
    except (Irregular, OSError) as error:
        what, do = (str(error), _COPY) if isinstance(error, Irregular) else (str(error.strerror), _FOLDER)
        return FoundRepository(mistakes=(Mistake(where=root.name, what=what, do=do),))
    if mistakes := [*_sizes(files), *_shape(root, files)]:
        return FoundRepository(mistakes=tuple(mistakes))
    folders: dict[str, ModelFolder] = {}
    for name, own in sorted(_by_model(files).items()):
        folders[name], found = read_folder(name, own, infer)
        mistakes += found
    mistakes += _twice(folders)
    mistakes += [] if mistakes else [each for folder in folders.values() for each in _calls(folder, folders)]
    order = () if mistakes else _order(folders)
    mistakes += [order] if isinstance(order, Mistake) else []
    if mistakes or isinstance(order, Mistake):
        return FoundRepository(mistakes=tuple(mistakes))
    return FoundRepository(models=tuple(_models(order, folders)))


def _sizes(files: Sequence[TreeFile]) -> Iterator[Mistake]:
    for file in files:
        if file.size_bytes > MAX_FILE_MB << 20:
            what = f"it has {file.size_bytes >> 20} MiB, the limit is {MAX_FILE_MB}"
            yield Mistake(where=file.name, what=what, do="Log the model itself with MLflow.")


def _shape(root: Path, files: Sequence[TreeFile]) -> Iterator[Mistake]:
    """Whether the folder is a repository at all."""
    if any(file.name == CONFIG for file in files):
        yield Mistake(
            where=root.name, what="it is a model's folder, not a repository of models", do="Name the one above."
        )
    elif not _by_model(files):
        what = "it has no model: a model is a folder with `config.pbtxt` and versions such as `1/model.onnx`"
        yield Mistake(where=root.name, what=what, do=_FOLDER)


def _by_model(files: Sequence[TreeFile]) -> dict[str, dict[str, Path]]:
    """The files of each model by their paths in its folder."""
    found: dict[str, dict[str, Path]] = {}
    for file in files:
        model, _, own = file.name.partition("/")
        if own and not model.startswith("."):
            found.setdefault(model, {})[own] = file.path
    return found


def _twice(folders: Mapping[str, ModelFolder]) -> Iterator[Mistake]:
    """Models whose names differ only in case: not every disk and cluster can tell them apart."""
    known: dict[str, str] = {}
    for name, folder in folders.items():
        if (other := known.setdefault(name.casefold(), name)) != name:
            yield Mistake(where=folder.where(""), what=f"its name is also that of {other!r}", do="Rename one of them.")


def _calls(folder: ModelFolder, folders: Mapping[str, ModelFolder]) -> Iterator[Mistake]:
    """Mistakes in an ensemble's steps."""
    if folder.backend != ENSEMBLE:
        return
    if not folder.config.ensemble_scheduling.step:
        yield Mistake(where=folder.where(), what="it is an ensemble without steps", do="Name its models.")
    for step in folder.config.ensemble_scheduling.step:
        called, where = folders.get(step.model_name), line_of(folder, "model_name", f'"{step.model_name}"')
        if called is None:
            do = f"There are {', '.join(sorted(folders))}."
            yield Mistake(
                where=where, what=f"it calls {step.model_name!r}, which is not a model of the repository", do=do
            )
            continue
        if step.model_version > 0 and step.model_version not in called.versions:
            what = f"it calls version {step.model_version} of {called.name}, which serves {list(called.versions)}"
            yield Mistake(where=where, what=what, do="Call one that is served, or -1 for the newest.")
        for kind, named, tensors in (
            ("input", step.input_map, called.config.input),
            ("output", step.output_map, called.config.output),
        ):
            if unknown := sorted(set(named) - {each.name for each in tensors}):
                what = f"{called.name} has no {kind} {unknown[0]!r}"
                yield Mistake(where=where, what=what, do=f"Look at {called.where()}.")


def _order(folders: Mapping[str, ModelFolder]) -> tuple[str, ...] | Mistake:
    """The models in an order in which each comes after those that it calls."""
    graph = {
        name: sorted({step.model_name for step in each.config.ensemble_scheduling.step})
        for name, each in folders.items()
    }
    try:
        return tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        cycle = [str(name) for name in reversed(error.args[1])]
        where = line_of(folders[cycle[0]], "model_name", f'"{cycle[1]}"')
        return Mistake(
            where=where, what=f"these ensembles call each other: {' -> '.join(cycle)}", do="Break the circle."
        )


def _models(order: tuple[str, ...], folders: Mapping[str, ModelFolder]) -> Iterator[FoundModel]:
    """The models in order, each with all that it calls, however indirectly."""
    below: dict[str, tuple[str, ...]] = {}
    why: dict[str, str] = {}
    for name in order:
        folder = folders[name]
        called = list(dict.fromkeys(step.model_name for step in folder.config.ensemble_scheduling.step))
        below[name] = tuple(dict.fromkeys(inner for each in called for inner in (*below[each], each)))
        unfit = next((each for each in called if why[each]), "")
        why[name] = f"it calls {unfit}, which can't be served: {why[unfit]}" if unfit else _left_out(folder)
        yield FoundModel(
            name=name,
            backend=folder.backend,
            versions=folder.versions,
            max_batch=folder.config.max_batch_size,
            signature=folder.signature,
            members=below[name],
            called_by=tuple(
                sorted(
                    other
                    for other, each in folders.items()
                    if name in {step.model_name for step in each.config.ensemble_scheduling.step}
                )
            ),
            code=tuple(sorted(folder.where(file) for file in folder.files)) if folder.backend == PYTHON else (),
            config=text_format.MessageToString(folder.config) if folder.completed else "",
            left_out=why[name],
            gains=() if why[name] else gains(folder),
        )


def _left_out(folder: ModelFolder) -> str:
    """Why the bundled server can't serve a model as it is; empty if it can."""
    return next(_obstacles(folder), "")


def _obstacles(folder: ModelFolder) -> Iterator[str]:
    config = folder.config
    if folder.backend not in (*MODEL_FILES, ENSEMBLE):
        yield f"the bundled server has no backend {folder.backend}: log the model itself, and Shiplift makes its form"
    if folder.backend == "openvino" and not str(folder.file_of(folder.versions[-1])).endswith(".onnx"):
        yield "the bundled server's OpenVINO reads ONNX, and this is OpenVINO's own format"
    accelerators = config.optimization.execution_accelerators
    loads = config.model_operations.op_library_filename or config.model_repository_agents.agents
    for obstacle, why in (
        (
            any(group.kind == group.KIND_GPU or group.gpus for group in config.instance_group),
            "its instance_group asks for a GPU, and the bundled server has none",
        ),
        (
            accelerators.gpu_execution_accelerator or accelerators.cpu_execution_accelerator,
            "it asks for an execution accelerator, which the bundled server's backends lack",
        ),
        (
            config.HasField("sequence_batching"),
            "its requests belong to sequences (sequence_batching): log the graph, and `serving` has its states",
        ),
        (
            config.model_transaction_policy.decoupled,
            "it answers in pieces (decoupled), which can't be compared with a single right answer",
        ),
        (loads or config.cc_model_filenames, "its configuration loads libraries or agents into the server"),
    ):
        if obstacle:
            yield why
    for each in folder.signature.inputs:
        if each.shape[:1] not in ((-1,), (1,)):
            yield f"its input {each.name!r} has no first dimension of rows, -1 or 1: {list(each.shape)}"
    if folder.backend == PYTHON:
        yield from _python_obstacles(folder)


def _python_obstacles(folder: ModelFolder) -> Iterator[str]:
    if "EXECUTION_ENV_PATH" in folder.config.parameters:
        yield "it brings an environment (EXECUTION_ENV_PATH): `shiplift push` releases it with a requirements.txt"
    for name, path in folder.files.items():
        if name.endswith(".py") and _BLS.search(read_regular(path, _MAX_SOURCE_BYTES)):
            yield f"its {name} calls other models (BLS): make it a step of a pipeline (docs/howto/pipelines.md)"
