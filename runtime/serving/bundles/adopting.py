"""An adopted Triton repository as a package: the same models and configurations, under production's names and numbers.

The model gets its registered name and version, those that it calls get names with the version's digest, and a Python
model runs in a confined process of its own instead of Triton's. Nothing else changes.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tritonclient.grpc import model_config_pb2 as pb

from shiplift.runtime.admission.adopting.model_folder import ENSEMBLE, MODEL_FILES, PYTHON
from shiplift.runtime.admission.adopting.registered import REPOSITORY, adopted_model
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.guest import adopted
from shiplift.runtime.records.adopted import FoundModel
from shiplift.runtime.records.limits import Limits
from shiplift.runtime.records.model import ModelVersion
from shiplift.runtime.records.serving import ServingConfig
from shiplift.runtime.serving.triton.config import LIMITS, TIME_LIMIT, parse, render, write_limits
from shiplift.runtime.serving.triton.hosted_backend import write_hosted

_MODEL = Path(adopted.__file__).with_name("adopted_model.py")
_AUTHOR = "author"  # the author's folder of the model, beside our own files
_NOTE = "adopted.txt"  # Triton needs a folder for a version of an ensemble, and stores keep no empty ones


@dataclass(frozen=True, kw_only=True)
class AdoptedTree:
    """What was written: the main model's name, those that it calls in the order to load them, and its configuration."""

    name: str
    companions: tuple[str, ...]
    config: ServingConfig
    batches: bool


@dataclass(frozen=True, kw_only=True)
class _Calls:
    """How the models of a package know each other: names and versions by the name in the repository; their limits."""

    names: Mapping[str, str]
    numbers: Mapping[str, int]
    limits: Limits


def write_adopted(to: Path, logged: Path, version: ModelVersion, limits: Limits) -> AdoptedTree:
    """Writes the adopted version in the folder `logged` as a package into the new folder `to`.

    Each model may use the `limits`, whatever its configuration says.

    Raises:
        NotAdmitted: its files have mistakes.
        MissingTool: a library of the confinement is not installed here.
        StorageFull: no space is left.
    """
    model, number, models = adopted_model(logged)
    source = logged / REPOSITORY
    to.mkdir(parents=True)
    digest = version.digest.removeprefix("sha256:")[:12]
    numbers = _numbers(model, number, models, source)
    names = {name: f"{serving_name(name)}-{numbers[name]}--{digest}" for name in model.members}
    calls = _Calls(names=names, numbers=numbers, limits=limits)
    for name in model.members:
        _write(to, source / name, models[name], numbers[name], names[name], numbers[name], calls)
    main = serving_name(version.name)
    config = _write(to, source / model.name, model, number, main, version.version, calls)
    return AdoptedTree(
        name=main,
        companions=tuple(names.values()),
        config=ServingConfig(
            max_batch=max(1, config.max_batch_size),
            queue_delay_us=config.dynamic_batching.max_queue_delay_microseconds,
            instances=sum(group.count or 1 for group in config.instance_group) or 1,
            threads=1,
        ),
        batches=config.max_batch_size > 0,
    )


def _numbers(model: FoundModel, number: int, models: Mapping[str, FoundModel], source: Path) -> dict[str, int]:
    """The version of each model that is called: the one that a step names, or the newest."""
    numbers = {name: models[name].versions[-1] for name in model.members}
    for name in (model.name, *model.members):
        for step in parse((source / name / "config.pbtxt").read_text()).ensemble_scheduling.step:
            if step.model_version > 0:
                numbers[step.model_name] = step.model_version
    return numbers | {model.name: number}


def _write(
    to: Path,
    source: Path,
    model: FoundModel,
    number: int,
    name: str,
    version: int,
    calls: _Calls,
) -> pb.ModelConfig:
    """Writes one model; returns its configuration."""
    config = parse((source / "config.pbtxt").read_text())
    config.name = name
    config.version_policy.specific.versions[:] = [version]
    folder = to / name / str(version)
    folder.mkdir(parents=True)
    if model.backend == PYTHON:
        _write_python(folder, source, number)
        config.parameters["FORCE_CPU_ONLY_INPUT_TENSORS"].string_value = "yes"
    elif model.backend == ENSEMBLE:
        (folder / _NOTE).write_text(f"{model.name} version {number}, as it was adopted\n")
        for step in config.ensemble_scheduling.step:
            step.model_version = calls.numbers[step.model_name]
            step.model_name = calls.names[step.model_name]
    else:
        shutil.copytree(source / str(number), folder, dirs_exist_ok=True)
        own = config.default_model_filename or MODEL_FILES[model.backend]
        (folder / own).replace(folder / MODEL_FILES[model.backend])
    if model.backend != ENSEMBLE:
        config.backend, config.platform = model.backend, ""
        config.default_model_filename = MODEL_FILES[model.backend]
        for parameter in (TIME_LIMIT, *LIMITS.values()):
            config.parameters.pop(parameter, None)
        write_limits(config, calls.limits)
    _beside(to / name, source, config, version)
    (to / name / "config.pbtxt").write_text(render(config))
    return config


def _write_python(folder: Path, source: Path, number: int) -> None:
    """Writes a Python model as Triton's Python backend hosts it: the author's files as they were, below a folder."""
    write_hosted(folder, _MODEL)
    author = folder / _AUTHOR
    author.mkdir()
    for entry in source.iterdir():
        if entry.is_dir() and (entry.name == str(number) or not entry.name.isdecimal()):
            shutil.copytree(entry, author / entry.name)
        elif entry.is_file():
            shutil.copyfile(entry, author / entry.name)
    (author / "version.txt").write_text(str(number))


def _beside(folder: Path, source: Path, config: pb.ModelConfig, version: int) -> None:
    """Writes labels and warm-up data, whose names say the version, so that two versions fit in a folder."""
    for output in config.output:
        if label := output.label_filename:
            output.label_filename = f"{Path(label).stem}.{version}{Path(label).suffix}"
            shutil.copyfile(source / label, folder / output.label_filename)
    for warmup in config.model_warmup:
        for each in warmup.inputs.values():
            if data := each.input_data_file:
                each.input_data_file = f"{version}-{data.replace('/', '-')}"
                (folder / "warmup").mkdir(exist_ok=True)
                shutil.copyfile(source / "warmup" / data, folder / "warmup" / each.input_data_file)
