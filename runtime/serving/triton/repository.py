"""A Triton model repository on disk. Only this module knows how the bundled server's differs from NVIDIA's.

A package is a tree `NAME/config.pbtxt`, `NAME/VERSION/model.onnx` (and `model.py` if the bundled server runs it in
Python). A model that takes text or images may have another one beside it, `NAME--tensors`: its graph, which it calls on
NVIDIA's server. The names of its warm-up data and labels contain the version, so that two versions fit in one model
folder during a switch. Next to the model lies `golden.npz`, with requests and their right answers.
"""

import json
import shutil
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.guest import graphs
from shiplift.runtime.guest.graphs import guards as guards_module
from shiplift.runtime.guest.graphs.guards import FILE as GUARDS
from shiplift.runtime.model.samples import random_like
from shiplift.runtime.model.tensors import Arrays, batch_of, dump_npz
from shiplift.runtime.records.guards import Guard
from shiplift.runtime.records.serving import ServerKind, ServingConfig
from shiplift.runtime.serving.triton.config import (
    ModelDescription,
    WarmupRequest,
    in_python,
    model_config,
    of_called,
    parse,
    renamed,
    render,
    retuned,
)
from shiplift.runtime.serving.triton.hosted_backend import ONNX_MODEL, write_hosted
from shiplift.runtime.spec import serving_settings as spec
from shiplift.runtime.store.artifacts import digest

GUARDS_MODULE = Path(guards_module.__file__)
SEQUENCE_MODEL = Path(graphs.__file__).with_name("sequence_model.py")
GOLDEN = "golden.npz"
_WARMUPS = {"recorded": "example", "zeros": "zeros", "random": "random"}


def write_package(
    to: Path,
    model: ModelDescription,
    onnx_folder: Path | None,
    server: ServerKind,
    *,
    example: Arrays,
    golden: Arrays,
    backend: Path | None = None,
    guards: Sequence[Guard] = (),
) -> Path:
    """Writes the repository of one model into the empty folder `to`, and returns that folder.

    `onnx_folder` holds `model.onnx` and its external data (None: the model is not a graph); `example` has inputs by
    name for the warm-up; `golden` comes from `golden_arrays`. `backend` holds files that replace those of our own
    Python backend, if the model needs others. `guards` are in front of the model, on a server that has them.

    Raises:
        StorageFull: no space is left.
    """
    write_model(to, model, onnx_folder, server, example=example, backend=backend, guards=guards)
    (to / GOLDEN).write_bytes(dump_npz(golden))
    return to


def write_model(
    to: Path,
    model: ModelDescription,
    onnx_folder: Path | None,
    server: ServerKind,
    *,
    example: Arrays,
    backend: Path | None = None,
    guards: Sequence[Guard] = (),
) -> None:
    """Writes one model of a package, as `write_package` does.

    Raises:
        StorageFull: no space is left.
    """
    folder = to / model.name
    version = folder / str(model.version)
    version.mkdir(parents=True)
    for file in onnx_folder.iterdir() if onnx_folder else ():
        shutil.copyfile(file, version / file.name)
    if backend:
        shutil.copytree(backend, version, dirs_exist_ok=True)
    elif in_python(model, server):
        _write_backend(version, model)
    if guarded := bool(guards) and has_guards(model.serving, server):
        _write_guards(version, guards)
    if model.serving.labels:
        name = f"labels.{model.version}.txt"
        (folder / name).write_text("\n".join(model.serving.labels) + "\n")
        model = replace(model, labels_file=name)
    if (how := model.serving.warm_up) and not model.signature.streamed:  # such a model warms itself up
        how = how.model_copy(update={"source": "recorded"}) if guarded else how  # the guards may refuse other rows
        model = replace(model, warmups=_write_warmups(folder, model, example, how))
    (folder / "config.pbtxt").write_text(render(model_config(model, server)))


def has_guards(serving: spec.Serving, server: ServerKind) -> bool:
    """Whether a server checks guards: the bundled one does, but for models with states."""
    return server == "bundled" and serving.sequence_batching is None


def _write_guards(version: Path, guards: Sequence[Guard]) -> None:
    """Writes them for our backends in C and Python, of which the latter imports the file beside it."""
    entries = [guard.entry() for guard in guards]
    (version / GUARDS).write_text(json.dumps(entries, ensure_ascii=False, allow_nan=False))
    if (version / "model.py").is_file():
        shutil.copyfile(GUARDS_MODULE, version / GUARDS_MODULE.name)


def _write_backend(version: Path, model: ModelDescription) -> None:
    write_hosted(version, SEQUENCE_MODEL if model.serving.sequence_batching else ONNX_MODEL)


def install(package: Path, repository: Path, *, source: str, name: str) -> None:
    """Puts the model `source` of a fetched package into a server's repository as `name`.

    The files of other versions stay, so a server that still runs one can be restarted from them. The configuration is
    replaced last and atomically, so a kill leaves either the old model or the new one.
    """
    model, to = package / source, repository / name
    to.mkdir(parents=True, exist_ok=True)
    for entry in sorted(model.iterdir()):
        if entry.name != "config.pbtxt":
            _replace(entry, to / entry.name)
    partial = to / ".config.pbtxt.new"
    partial.write_text(renamed((model / "config.pbtxt").read_text(), name))
    partial.replace(to / "config.pbtxt")


def install_all(package: Path, repository: Path, *, source: str, name: str) -> None:
    """Puts every model of a fetched package into a server's repository as `name`; endings such as `--tensors` stay."""
    for model in _models(package, source):
        install(package, repository, source=model.name, name=name + model.name.removeprefix(source))


def install_member_models(package: Path, repository: Path, *, source: str) -> None:
    """Puts the member models of a fetched package, such as a pipeline's members, into a server's repository.

    They keep their names, which contain the bundle's digest.
    """
    own = _models(package, source)
    for config in sorted(package.glob("*/config.pbtxt")):
        if config.parent not in own:
            install(package, repository, source=config.parent.name, name=config.parent.name)


def _models(package: Path, source: str) -> list[Path]:
    """The folders of a package's models: the one that is served under its name, and those beside it."""
    return [package / source, *sorted(package.glob(f"{source}--*"))]


def reconfigure(
    package: Path,
    model: str,
    config: ServingConfig,
    late_after_ms: float = 0.0,
    called: Sequence[str] = (),
    memory_mb: int | None = None,
) -> None:
    """Gives a fetched package another serving configuration (`config.retuned`).

    `called` are the suffixes of the models that the package's main model calls (`config.of_called`).
    """
    for folder in _models(package, model):
        own = of_called(config) if folder.name.removeprefix(model) in called else config
        file = folder / "config.pbtxt"
        file.write_text(retuned(file.read_text(), own, late_after_ms, memory_mb))


def serve_only(repository: Path, name: str, version: int) -> None:
    """Keeps one version of a model in a repository that no server uses yet, and removes its package's others."""
    file = repository / name / "config.pbtxt"
    config = parse(file.read_text())
    if list(config.version_policy.specific.versions) != [version]:
        config.version_policy.specific.versions[:] = [version]
        file.write_text(render(config))
        retire(repository, name)


def retire(repository: Path, name: str) -> None:
    """Removes the files of versions that the model's configuration no longer names."""
    folder = repository / name
    if not (folder / "config.pbtxt").is_file():
        return
    current = {str(v) for v in parse((folder / "config.pbtxt").read_text()).version_policy.specific.versions}
    for entry in folder.iterdir():
        versions = set(entry.name.split(".")) if entry.is_file() else {entry.name}
        if entry.name not in ("config.pbtxt", "warmup") and not versions & current:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    for entry in (folder / "warmup").glob("*"):
        if entry.name.split("-", 1)[0] not in current:
            entry.unlink()


def _replace(entry: Path, to: Path) -> None:
    partial = to.with_name(f".{to.name}.new")
    if entry.is_dir() and entry.name == "warmup":
        shutil.copytree(entry, to, dirs_exist_ok=True)
    elif entry.is_dir():
        if _same(entry, to):
            return
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(entry, partial)
        shutil.rmtree(to, ignore_errors=True)
        partial.rename(to)
    else:
        shutil.copyfile(entry, partial)
        partial.replace(to)


def _same(left: Path, right: Path) -> bool:
    """Whether two folders hold the same files: a version that is already in place is not touched."""
    names = [sorted(p.relative_to(side).as_posix() for p in side.rglob("*") if p.is_file()) for side in (left, right)]
    names[1] = [name for name in names[1] if "__pycache__" not in name]
    return names[0] == names[1] and all(digest(left / name) == digest(right / name) for name in names[0])


def _write_warmups(
    folder: Path, model: ModelDescription, example: Arrays, how: spec.Warmup
) -> tuple[WarmupRequest, ...]:
    """Writes a request of one sample and one of a full batch, so both paths are allocated before traffic comes.

    Triton repeats the sample for the batch. It makes zeros itself. Random data are drawn here, because Triton's are
    random bits, such as NaN, or ids far outside a vocabulary.
    """
    recorded = batch_of(example, 1)
    shapes = {name: tuple(array.shape[1:]) or (1,) for name, array in recorded.items()}
    files: dict[str, str] = {}
    if how.source != "zeros":
        random = how.source == "random"
        sample = random_like(example, model.signature.inputs, 1, seed=0) if random else recorded
        (folder / "warmup").mkdir()
        files = {name: f"{model.version}-input-{index}" for index, name in enumerate(sample)}
        for name, array in sample.items():
            (folder / "warmup" / files[name]).write_bytes(raw_bytes(array[:1]))
    return tuple(
        WarmupRequest(batch=batch, name=_WARMUPS[how.source], count=how.count, files=files, shapes=shapes)
        for batch in (1, model.config.max_batch)
    )


def raw_bytes(array: NDArray[Any]) -> bytes:
    """An array as Triton's raw tensor content; texts are prefixed with their length, little-endian."""
    if array.dtype.kind in "OSU":
        texts = [item if isinstance(item, bytes) else str(item).encode() for item in array.reshape(-1)]
        return b"".join(struct.pack("<I", len(text)) + text for text in texts)
    return np.ascontiguousarray(array).tobytes()


def golden_arrays(inputs: Arrays, outputs: Arrays) -> Arrays:
    """Requests and their correct answers as one set of arrays."""
    return {
        **{f"input/{name}": array for name, array in inputs.items()},
        **{f"output/{name}": array for name, array in outputs.items()},
    }
