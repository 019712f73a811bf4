"""Adopting a Triton model repository: reading it in a sandbox, registering its models, and releasing them."""

import hashlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import yaml
from pydantic import Field

from shiplift.pipelines.commands import console, edge
from shiplift.pipelines.engines.protocol import Engine
from shiplift.runtime.admission.adopting.registered import REPOSITORY
from shiplift.runtime.admission.pipelines import EXAMPLE_FILE
from shiplift.runtime.base.errors import DataInvalid, NotAdmitted, UsageError
from shiplift.runtime.base.files import TreeFile, read_regular, regular_files
from shiplift.runtime.confinement.policy import SCAN, Entry, SandboxLimits
from shiplift.runtime.confinement.workplace import workplace
from shiplift.runtime.records.adopted import FoundModel, FoundRepository
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.model import ADOPTED
from shiplift.runtime.spec.document import parse
from shiplift.runtime.store.registry.terms import ADOPTED_TAG, FOLDER, check_name

_READ = Entry("shiplift.runtime.admission.adopting.entry:read", SCAN)
_LIMITS = SandboxLimits(memory_mb=4096, timeout_s=300, task="reading the repository", settings="")
_MAX_FILE_BYTES, _MAX_EXAMPLE_BYTES = 2048 << 20, 256 << 20
_SHOWN = 20


class Adoption(Record):
    """What a repository's models would become: those to adopt, and the others with the reason."""

    adopted: tuple[FoundModel, ...]
    left_out: dict[str, str] = Field(default_factory=dict)
    members: tuple[FoundModel, ...] = ()


class AdoptedVersion(Record):
    """A model's version in the repository, and as what it is registered. `new`: this command registered it."""

    model: str
    repository_version: int
    version: int
    new: bool
    outcome: str = ""
    reason: str = ""
    exit_code: int = 0


class AdoptedModels(Record):
    """The versions that a command adopted."""

    models: tuple[AdoptedVersion, ...]


def plan(folder: Path, names: Sequence[str], example: Path | None, spec: Path | None) -> Adoption:
    """What would be adopted of the repository in `folder`; `names` are models, or none for those that nothing calls.

    Raises:
        UsageError: a file or model that was named is not there.
        NotAdmitted: the repository has mistakes, or nothing in it can be served; all are listed.
        SpecInvalid: the spec is wrong.
    """
    parse(edge.read(spec) if spec else "")
    found = _read(folder)
    if found.mistakes:
        listed = "\n".join(f"  {mistake}" for mistake in found.mistakes[:_SHOWN])
        more = f"\n  and {len(found.mistakes) - _SHOWN} more" if len(found.mistakes) > _SHOWN else ""
        raise NotAdmitted(
            f"{folder} has mistakes, so nothing was registered:\n{listed}{more}",
            do="Correct what is named above, and adopt it again.",
        )
    models = {model.name: model for model in found.models}
    if unknown := [name for name in names if name not in models]:
        raise UsageError(f"{folder} has no model {unknown[0]!r}", do=f"It has {', '.join(sorted(models))}.")
    wanted = [models[name] for name in names] or [model for model in found.models if not model.called_by]
    unfit = {model.name: model.left_out for model in wanted if model.left_out}
    chosen = tuple(model for model in wanted if not model.left_out)
    if not chosen or (names and unfit):
        why = "\n".join(f"  {name}: {reason}" for name, reason in unfit.items())
        raise NotAdmitted(
            f"the bundled server can't serve this as it is:\n{why}", do="Release the model itself instead."
        )
    for model in chosen:
        check_name(model.name)
    _check_example(chosen, example)
    members = dict.fromkeys(name for model in chosen for name in model.members)
    return Adoption(adopted=chosen, left_out=unfit, members=tuple(models[name] for name in members))


def register(
    engine: Engine, folder: Path, adoption: Adoption, example: Path | None, spec: Path | None
) -> tuple[AdoptedVersion, ...]:
    """Registers each version, once: a version with the same files that is there already is taken.

    Raises:
        NotAdmitted: the registry stores files in a place that can't be written from here.
    """
    members = {model.name: model for model in (*adoption.members, *adoption.adopted)}
    beside = _beside(example, spec)
    made = []
    for model in adoption.adopted:
        for number in model.versions:
            files = _Files(folder, [model, *(members[name] for name in model.members)], model, number, beside)
            tag = files.digest()
            known = engine.tagged(model.name, ADOPTED_TAG, tag)
            version = known or engine.register(model.name, files, {ADOPTED_TAG: tag})
            edge.say(f"{'found' if known else 'registered'} {model.name} version {version}, {number} in the repository")
            made.append(AdoptedVersion(model=model.name, repository_version=number, version=version, new=not known))
    return tuple(made)


def release(engine: Engine, versions: Sequence[AdoptedVersion], detach: bool, *, quiet: bool) -> AdoptedModels:
    """Orders the releases of the versions, and follows one after the other to its end, unless `detach`."""
    done = []
    for each in versions:
        accepted = engine.order(f"{each.model}/{each.version}", "", again=False, allow_older=False)
        if detach or not engine.attended:
            done.append(each)
            continue
        report = console.follow(engine, accepted.name, model=each.model, quiet=quiet)
        ended = {"outcome": report.outcome, "reason": report.reason, "exit_code": report.exit_code}
        done.append(each.model_copy(update=ended))
    return AdoptedModels(models=tuple(done))


def show(adoption: Adoption) -> None:
    """Prints a plan."""
    for model in adoption.adopted:
        numbers = ", ".join(map(str, model.versions))
        calls = f", calls {', '.join(model.members)}" if model.members else ""
        console.echo(f"{model.name}: {model.backend}, version {numbers} of the repository{calls}")
    for name, why in adoption.left_out.items():
        console.echo(f"{name}: left out, since {why}")
    console.echo("What a release of the model itself would change:")
    for model in (*adoption.adopted, *adoption.members):
        for gain in model.gains:
            console.echo(f"  {model.name}: {gain}")


def show_adopted(adopted: AdoptedModels) -> None:
    """Prints what became of each version."""
    for each in adopted.models:
        ended = f"{each.outcome}: {each.reason}" if each.reason else each.outcome or "releasing"
        console.echo(f"{each.model}/{each.version}  {ended}")


class _Files(Mapping[str, bytes]):
    """The files of a version by their paths, each read when it is asked for: a repository may be larger than memory."""

    def __init__(
        self, folder: Path, models: Sequence[FoundModel], main: FoundModel, number: int, beside: Mapping[str, bytes]
    ) -> None:
        named = {"flavors": {ADOPTED: {"model": main.name, "version": number}}}
        self._made = {"MLmodel": yaml.safe_dump(named).encode(), **beside}
        self._made |= {
            f"{REPOSITORY}/{model.name}/config.pbtxt": model.config.encode() for model in models if model.config
        }
        self._read = {
            f"{REPOSITORY}/{model.name}/{file.name}": file.path
            for model in models
            for file in regular_files(folder / model.name)
            if _belongs(file, model, number if model is main else None)
        }
        self._names = sorted({*self._made, *self._read})

    def __getitem__(self, name: str) -> bytes:
        """The content of a file."""
        return self._made[name] if name in self._made else read_regular(self._read[name], _MAX_FILE_BYTES)

    def __iter__(self) -> Iterator[str]:
        """The paths, sorted."""
        return iter(self._names)

    def __len__(self) -> int:
        """How many files there are."""
        return len(self._names)

    def digest(self) -> str:
        """The SHA-256 of all names and contents."""
        total = hashlib.sha256()
        for name, body in self.items():
            total.update(f"{name}\n{hashlib.sha256(body).hexdigest()}\n".encode())
        return total.hexdigest()


def _belongs(file: TreeFile, model: FoundModel, number: int | None) -> bool:
    """Whether a file is needed: of the main model, one version is, and of the others those that are served."""
    folder, slash, _ = file.name.partition("/")
    if not slash or not folder.isdecimal():
        return True
    return int(folder) == number if number is not None else int(folder) in model.versions


def _read(folder: Path) -> FoundRepository:
    """Reads the repository in a sandbox, since its files may be anyone's."""
    root = folder.resolve()
    if not root.is_dir():
        raise UsageError(f"{folder} is not a folder", do="Name a Triton model repository.")
    settings = edge.settings().sandbox
    with tempfile.TemporaryDirectory() as home, workplace(_READ, Path(home), settings, read=[root]) as place:
        answer, _ = place.sandbox.run({"folder": str(root)}, _LIMITS)
    return FoundRepository.model_validate(answer)


def _check_example(chosen: Sequence[FoundModel], example: Path | None) -> None:
    """Checks that each model has requests, or tensors from which some can be made.

    Raises:
        UsageError: an example is given for several models, or a model needs one.
        DataInvalid: the example lacks an input.
    """
    if example and len(chosen) > 1:
        raise UsageError(
            f"--example has the requests of one model, and {len(chosen)} are adopted", do="Name one with --model."
        )
    for model in chosen:
        inputs = [spec for spec in model.signature.inputs if not spec.optional]
        if example:
            with np.load(BytesIO(_data(example)), allow_pickle=False) as arrays:
                missing = [spec.name for spec in inputs if spec.name not in arrays.files]
            if missing:
                raise DataInvalid(f"{example} lacks the input {missing[0]!r} of {model.name}", do="Add it.")
        elif vague := [spec.name for spec in inputs if spec.datatype == "BYTES" or -1 in spec.shape[1:]]:
            raise UsageError(
                f"{model.name} takes {vague[0]!r}, whose values its configuration does not determine",
                do=f"Give requests: `--model {model.name} --example requests.npz`, with arrays by input name.",
            )


def _beside(example: Path | None, spec: Path | None) -> dict[str, bytes]:
    files = {EXAMPLE_FILE: _data(example)} if example else {}
    return files | ({f"{FOLDER}/shiplift.yaml": edge.read(spec).encode()} if spec else {})


def _data(file: Path) -> bytes:
    try:
        return read_regular(file, _MAX_EXAMPLE_BYTES)
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} can't be read: {error}", do="Give an NPZ file.") from error
