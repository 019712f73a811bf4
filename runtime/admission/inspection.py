"""The half of admission outside the sandbox: has a version's files read and scanned there, once for equal files.

The same files come again when a version is copied to another model, or released with another spec. The sandbox's answer
is kept only in the home, to which only its owner can write: authors can write to the registry, and a scan result that
an author wrote would admit anything. A pod starts with an empty home, so it scans.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from shiplift.runtime.admission.scan import objections, refusal
from shiplift.runtime.base.errors import NotAdmitted
from shiplift.runtime.base.files import Irregular, read_regular, regular_files
from shiplift.runtime.base.progress import progress
from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.confinement.policy import SCAN, Entry, SandboxLimits
from shiplift.runtime.confinement.workplace import Workplace
from shiplift.runtime.host.installed import package_digest
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.model import Obstacle, Scan
from shiplift.runtime.records.scoring import Scoring
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.spec.document import ReleaseSpec
from shiplift.runtime.spec.serving_settings import told_states
from shiplift.runtime.store.artifacts import ArtifactStore, digest

INSPECT = Entry("shiplift.runtime.admission.entry:inspect", SCAN)
_LIMITS = SandboxLimits(memory_mb=4096, timeout_s=600, task="reading and scanning the model's files", settings="")
_EXAMPLES = ("input_example.json", "serving_input_example.json")  # as MLflow names them
_MAX_EXAMPLE_BYTES = 512 << 20  # as arrays
_PARSERS = ("modelaudit", "modelaudit-picklescan", "onnx", "numpy", "PyYAML")  # they decide what the scan sees


@dataclass(frozen=True, kw_only=True)
class InspectedVersion:
    """What the sandbox read from a version: its scan, and its contract with the input example, stored as NPZ.

    `states` maps each input that takes a state to the output with its next value. `task` is that of a Hugging Face
    model, `code` are a pipeline's Python files. `own_code` names the author's code that the model's own library would
    run, empty if the model is data alone; `no_python` says why that library can't serve it. `scoring` is the signature
    as MLflow's own clients know it.
    """

    scan: Scan
    flavor: Any  # the record that takes it checks it
    signature: Signature
    tabular: bool
    states: dict[str, str]
    requirements: tuple[str, ...]
    task: str
    code: tuple[str, ...]
    notes: tuple[str, ...]
    example: Artifact
    own_code: str = ""
    no_python: Obstacle | None = None
    scoring: Scoring | None = None


class Kept(Record):
    """The sandbox's answer about files that it did not refuse, and the example that it wrote."""

    answer: dict[str, Any]
    example: Artifact


def inspect(model: Path, place: Workplace, spec: ReleaseSpec, store: ArtifactStore, kept: Path) -> InspectedVersion:
    """Reads and scans the files in the sandbox, unless the folder `kept` has an answer about the same files.

    Raises:
        NotAdmitted: the version lacks something, or its files are unsafe. Such an answer is not kept.
    """
    asked = {
        "pickle": spec.admission.pickle,
        "python": spec.admission.python,
        "own_library": spec.export.fallback != "none",
        "unpacked_mb": int(2 * spec.admission.max_size_mb),
        "states": told_states(spec.serving),
    }
    file = kept / f"{_key(model, asked)}.json"
    if before := _recalled(file, store):
        progress("using the earlier scan of the same files")
        return before
    answer, example = _asked(model, place, asked)
    inspected = _inspected(answer, lambda: store.put_bytes(example))
    write_atomically(file, Kept(answer=answer, example=inspected.example).model_dump_json())
    return inspected


def _asked(model: Path, place: Workplace, asked: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """The sandbox's answer and example. MLflow's input examples are moved to a separate folder while it reads."""
    progress("scanning the model's files")
    examples, work = place.folder / "examples", place.sandbox.work
    examples.mkdir()
    moved = [file for name in _EXAMPLES if (file := model / name).is_file()]
    for file in moved:
        file.rename(examples / file.name)
    answer, _ = place.sandbox.run({"folder": str(model), "examples": str(examples), "out": str(work), **asked}, _LIMITS)
    for file in moved:
        (examples / file.name).rename(file)
    try:
        return answer, read_regular(work / "example.npz", _MAX_EXAMPLE_BYTES)
    except Irregular as error:
        raise _senseless(error) from error


def _inspected(answer: dict[str, Any], example: Callable[[], Artifact]) -> InspectedVersion:
    """The sandbox's answer, checked like anything that the author could have written; `example` is called last.

    Raises:
        NotAdmitted: the files are unsafe, or the answer makes no sense.
    """
    try:
        scan = Scan.model_validate(answer["scan"])
        if refused := objections(scan):
            raise refusal(refused)
        return InspectedVersion(
            scan=scan,
            flavor=str(answer["flavor"]),
            signature=Signature.model_validate(answer["signature"]),
            tabular=bool(answer["tabular"]),
            states={str(name): str(output) for name, output in answer["states"].items()},
            requirements=tuple(str(requirement) for requirement in answer["requirements"]),
            task=str(answer["task"]),
            code=tuple(str(path) for path in answer["code"]),
            notes=tuple(str(note) for note in answer["notes"]),
            own_code=str(answer["own_code"]),
            no_python=Obstacle.model_validate(answer["no_python"]) if answer["no_python"] else None,
            scoring=Scoring.model_validate(answer["scoring"]) if answer["scoring"] else None,
            example=example(),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # pydantic's errors are ValueErrors
        raise _senseless(error) from error


def _senseless(error: Exception) -> NotAdmitted:
    reason = " ".join(str(error).split())[:300]
    return NotAdmitted(f"the model's files can't be read: {reason}", do="Log the model again.")


def _recalled(file: Path, store: ArtifactStore) -> InspectedVersion | None:
    """The stored answer, if it can still be read and its example still exists."""
    try:
        kept = Kept.model_validate_json(file.read_text())
        return _inspected(kept.answer, lambda: kept.example) if store.holds(kept.example) else None
    except (OSError, ValueError, NotAdmitted):  # NotAdmitted: it was altered
        return None


def _key(model: Path, asked: dict[str, Any]) -> str:
    """What the answer depends on: every file by its digest, the question, and the code that reads and judges."""
    about = {
        "files": {file.name: digest(file.path)[0] for file in regular_files(model)},
        "asked": asked,
        "code": package_digest(),
        "parsers": {name: _version(name) for name in _PARSERS},
    }
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _version(package: str) -> str:
    with contextlib.suppress(PackageNotFoundError):
        return version(package)
    return ""
