"""The admission and export of a logged model as a release does both, in this process: what they make, and how it ends.

The sandboxed halves are called as functions, since confinement is no question here and costs seconds for each model.
Python models run in this environment instead of one of their own. What the second half, which proves, was given is
kept, so that it can be asked again about sabotaged files.
"""

import contextlib
import importlib
import json
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import yaml

from benchmarks.proof.case import Case, Logged
from benchmarks.proof.logged_model import save
from shiplift.runtime.admission import conversion
from shiplift.runtime.admission.inspection import INSPECT, inspect
from shiplift.runtime.confinement.policy import Entry
from shiplift.runtime.families import table
from shiplift.runtime.families.graph import export as graph_export
from shiplift.runtime.families.python import export as python_export
from shiplift.runtime.host.folders import scratch_folder
from shiplift.runtime.model.tensors import dump_npz
from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.records.model import Datasets, Isolation, ModelVersion, PythonEnvironment, RecordedRequests
from shiplift.runtime.records.site import Machine, Site
from shiplift.runtime.spec.document import ReleaseSpec
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.steps.export import export

T = TypeVar("T")
_OPEN = Isolation(network="none", files="none", memory_limit_mb=0, timeout_s=0)


@dataclass(kw_only=True)
class Proving:
    """What a half of the export that proves was called with: its function, its arguments and its folder's copy."""

    function: str
    arguments: dict[str, Any]
    folder: Path
    original: Path  # as the arguments call the folder

    def again(self, folder: Path) -> dict[str, Any]:
        """Calls it with a folder in place of its own.

        Raises:
            ShipliftError: as it does.
        """
        text = json.dumps(self.arguments).replace(str(self.original), str(folder))
        return _called(self.function, json.loads(text), folder / "work")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How an export ended: with a record, or an error that refuses the version; `proof_seconds` of the `seconds`.

    `proving` is what the half that proved the served form was given.
    """

    exported: Exported | None
    error: Exception | None
    seconds: float
    proof_seconds: float
    proving: Proving | None = None


@dataclass(kw_only=True)
class Workshop:
    """A home with a store, in which models are exported one after the other."""

    home: Path
    proving: Proving | None = None
    proof_seconds: float = 0.0

    @property
    def site(self) -> Site:
        """A machine without servers."""
        nowhere = Machine(http="", grpc="", metrics="")
        return Site(
            home=str(self.home),
            registry_uri="",
            artifacts_uri=(self.home / "artifacts").as_uri(),
            server_environment=str(self.home / "server"),
            place=nowhere,
        )

    @property
    def store(self) -> ArtifactStore:
        """Where exports are kept."""
        return ArtifactStore(self.site.artifacts_uri)

    def export(self, case: Case, logged: Logged, folder: Path) -> Outcome:
        """Logs a case's model to `folder`, admits and exports it; a refusal is an outcome, too."""
        save(case, logged, folder)
        self.proving, self.proof_seconds, started = None, 0.0, time.monotonic()
        exported, failure = None, None
        try:
            with warnings.catch_warnings(), self._unconfined():
                warnings.simplefilter("ignore")
                exported = self._exported(case, folder, self._datasets(logged))
        except Exception as error:  # whatever happens to one case is its result
            failure = error
        return Outcome(
            exported=exported,
            error=failure,
            seconds=time.monotonic() - started,
            proof_seconds=self.proof_seconds,
            proving=self.proving,
        )

    def _datasets(self, logged: Logged) -> Datasets:
        if not logged.validation:
            return Datasets()
        body = dump_npz(dict(logged.validation))
        return Datasets(validation=self.store.put_bytes(body), validation_name="validation.npz")

    def _exported(self, case: Case, folder: Path, datasets: Datasets) -> Exported:
        spec = ReleaseSpec.model_validate(yaml.safe_load(case.spec) or {})
        with self._place(INSPECT, self.home) as place:
            inspected = inspect(folder, place, spec, self.store, self.home / "inspections")
        family = table.recognised(inspected)
        family.check(self.site, spec, inspected)
        files = self.store.put_tree(folder)
        version = ModelVersion(name=case.name, version=1, digest=files.sha256, flavor=inspected.flavor, files=files)
        contract = family.contract(self.site, spec, inspected)
        return export(self.site, version, contract, spec.export, datasets, spec.data, RecordedRequests())

    @contextmanager
    def _unconfined(self) -> Iterator[None]:
        """Exports whose halves run here, and whose Python is this process's."""
        here = PythonEnvironment(python="", machine="", wheels=())
        prefix = Path(sys.prefix)
        with ExitStack() as stack:
            for module in (graph_export, python_export):
                stack.enter_context(patch.object(module, "workplace", self._place))
            stack.enter_context(patch.object(python_export, "resolve", lambda *_: here))
            stack.enter_context(patch.object(python_export, "ensure", lambda *_: prefix))
            for name in _ASKS:
                stack.enter_context(patch.object(conversion, name, self._timed(getattr(conversion, name))))
            yield

    def _timed(self, function: Callable[..., T]) -> Callable[..., T]:
        """The function, whose seconds are the proof's."""

        def timed(*arguments: Any, **keywords: Any) -> T:
            started = time.monotonic()
            try:
                return function(*arguments, **keywords)
            finally:
                self.proof_seconds += time.monotonic() - started

        return timed

    @contextmanager
    def _place(self, entry: Entry, root: Path, *_: Any, **__: Any) -> Iterator[Any]:
        """Takes the place of `workplace`."""
        with scratch_folder(root) as folder:
            yield _Place(folder=folder, sandbox=_Sandbox(workshop=self, entry=entry, folder=folder))

    def ran(self, entry: Entry, arguments: dict[str, Any], folder: Path) -> dict[str, Any]:
        """Runs a half; keeps what one that proves is given."""
        proves = entry.function in _PROVE
        if proves:
            kept = self.home / "proving" / entry.function.rpartition(":")[2]
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(folder, kept)
            self.proving = Proving(function=entry.function, arguments=arguments, folder=kept, original=folder)
        call = self._timed(_called) if entry.function in _TIMED else _called
        return call(entry.function, arguments, folder / "work")


_PROVE = (graph_export.VERIFY.function, python_export.PROVE.function)
_TIMED = (*_PROVE, python_export.ANSWER.function)
_ASKS = ("record", "judge")  # the functions of the first half that ask the original for the proof


@dataclass(frozen=True, kw_only=True)
class _Sandbox:
    """Has the sandbox's `run`."""

    workshop: Workshop
    entry: Entry
    folder: Path

    def __post_init__(self) -> None:
        self.work.mkdir()

    @property
    def work(self) -> Path:
        return self.folder / "work"

    def run(self, arguments: dict[str, Any], _limits: Any) -> tuple[dict[str, Any], Isolation]:
        return self.workshop.ran(self.entry, arguments, self.folder), _OPEN


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Has a workplace's folder and sandbox."""

    folder: Path
    sandbox: _Sandbox


def _called(function: str, arguments: dict[str, Any], work: Path) -> dict[str, Any]:
    """Calls an entry by name, with JSON in and out."""
    module, _, name = function.partition(":")
    work.mkdir(exist_ok=True)
    with contextlib.chdir(work):
        result = getattr(importlib.import_module(module), name)(**json.loads(json.dumps(arguments)))
    made: dict[str, Any] = json.loads(json.dumps(result))
    return made
