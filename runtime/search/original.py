"""Asks a version's original some rows again, confined as in its export."""

from pathlib import Path

from shiplift.runtime.admission.asked_again import ANSWERS, ROWS
from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.confinement.policy import CONVERT, PYTHON_HOST, Entry, SandboxLimits
from shiplift.runtime.confinement.workplace import Workplace, workplace
from shiplift.runtime.host.outputs import require_regular
from shiplift.runtime.model.python.bundle import write_bundle
from shiplift.runtime.model.python.environments import ensure, readable
from shiplift.runtime.model.tensors import Arrays, dump_npz, load_npz
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.file import from_file
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.model import PythonModel
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.store.artifacts import ArtifactStore

_LIBRARY = Entry("shiplift.runtime.admission.asked_again:ask_library", CONVERT)
_PROCESS = Entry("shiplift.runtime.admission.asked_again:ask_process", PYTHON_HOST)


def ask_original(
    site: Site, files: Artifact, python: PythonModel | None, logged: Signature, rows: Arrays, limits: SandboxLimits
) -> tuple[Answers | None, str]:
    """The answers of the logged `files` to rows, each alone, and who gave them; None, and why not, if nobody did.

    `python` is how the author's own code runs; None: the model's library is one of ours.
    """
    entry, store, home = _PROCESS if python else _LIBRARY, ArtifactStore(site.artifacts_uri), Path(site.home)
    read = [ensure(site, python.environment)] if python else []
    inputs = [spec.model_dump(mode="json") for spec in logged.inputs]
    try:
        with workplace(entry, home, site.sandbox, read=read) as place:
            source = store.fetch(files, place.folder / "source")
            (place.folder / "rows.npz").write_bytes(dump_npz(rows))
            order = {
                "model": str(source),
                "rows": str(place.folder / "rows.npz"),
                "inputs": inputs,
                "out": str(place.sandbox.work),
            }
            own = _own(site, place, source, python, read[0], limits) if python else {}
            place.sandbox.run(order | own, limits)
            require_regular(place.sandbox.work, ANSWERS)
            return from_file(load_npz(place.sandbox.work / ANSWERS), ROWS)[1], _judge(python)
    except ShipliftError as error:
        return None, f"nobody: {error.what}"


def _judge(python: PythonModel | None) -> str:
    return "mlflow.pyfunc, in the model's own environment" if python else "mlflow.pyfunc"


def _own(
    site: Site, place: Workplace, source: Path, python: PythonModel, root: Path, limits: SandboxLimits
) -> dict[str, object]:
    """What a process in the model's own environment needs."""
    code = write_bundle(place.folder / "code")
    return {
        "code": str(code),
        "environment": str(root),
        "read": readable(root, code, source),
        "answers_as": python.answers_as,
        "memory_mb": python.memory_mb,
        "limit_s": limits.timeout_s,
        "allow_without": list(site.sandbox.allow_without),
    }
