"""The export of Python models: their environment, their answers, and the proof that production gives these.

There is no graph to convert to. The logged model itself is served, in an environment of its own. What it answers to
each row alone is right; it has to answer the same in another process, and in batches if it is to get these.
"""

import time
from pathlib import Path
from typing import Any

from shiplift.runtime.base.progress import measuring, progress
from shiplift.runtime.confinement.policy import EVALUATE, PYTHON_HOST, Entry
from shiplift.runtime.confinement.workplace import workplace
from shiplift.runtime.families.known_data import known_data
from shiplift.runtime.families.work import Exporting
from shiplift.runtime.guest.python.outputs import SQUEEZED, WHOLE
from shiplift.runtime.host.outputs import require_regular
from shiplift.runtime.model.python.bundle import write_bundle
from shiplift.runtime.model.python.environments import ensure, packed, readable
from shiplift.runtime.model.python.resolving import resolve
from shiplift.runtime.records.kinds.contract import DeclaredGraph, DeclaredPython
from shiplift.runtime.records.kinds.exported import ExportedPython
from shiplift.runtime.records.model import ParityCase, PythonModel
from shiplift.runtime.records.proof import Proof
from shiplift.runtime.records.scoring import answered_as, passing_params
from shiplift.runtime.records.tensor import Signature

ANSWER = Entry("shiplift.runtime.admission.python_answers:answer", PYTHON_HOST)
PROVE = Entry("shiplift.runtime.admission.python_proving:prove", EVALUATE)


def export_python(work: Exporting[DeclaredPython] | Exporting[DeclaredGraph]) -> ExportedPython:
    """Makes the model's environment, records its answers and proves them. A model without a right graph goes this way.

    Raises:
        NotAdmitted, PolicyRefused: its requirements can't be installed, or are not allowed.
        ExportFailed: the model does not load or answer, is not repeatable, or its answers can't be served.
        DataInvalid: the validation data do not match the model.
        SandboxLimit: the model needs more memory or time than the spec allows.
        StorageFull: there is no space for its environment.
        Temporary: the package index can't be reached.
    """
    site, contract, store, home = work.site, work.contract, work.store, Path(work.site.home)
    environment = resolve(site, contract.requirements)
    root = ensure(site, environment)
    layer = packed(site, environment, store)  # before the model's code runs beside it
    limits = work.limits("asking the Python model")
    inputs = [spec.model_dump(mode="json") for spec in contract.signature.inputs]
    with (
        workplace(ANSWER, home, site.sandbox, read=[root]) as asking,
        workplace(PROVE, home, site.sandbox) as comparing,
        measuring(),
    ):
        source = store.fetch(work.version.files, asking.folder / "source")
        code = write_bundle(asking.folder / "code")
        progress("asking the model in the sandbox")
        started = time.monotonic()
        result, isolation = asking.sandbox.run(
            {
                "code": str(code),
                "environment": str(root),
                "model": str(source),
                "read": readable(root, code, source),
                "example": str(store.fetch(contract.example, asking.folder / "example.npz")),
                "known": known_data(work, asking),
                "inputs": inputs,
                "outputs": [spec.name for spec in contract.signature.outputs],
                "memory_mb": limits.memory_mb,
                "limit_s": limits.timeout_s,
                "allow_without": list(site.sandbox.allow_without),
                "out": str(asking.sandbox.work),
            },
            limits,
        )
        require_regular(asking.sandbox.work, "answers.npz")
        answers = comparing.folder / "answers.npz"
        (asking.sandbox.work / "answers.npz").rename(answers)
        told, _ = comparing.sandbox.run(
            {
                "answers": str(answers),
                "sets": [str(name) for name in result["sets"]],
                "outputs": [str(name) for name in result["outputs"]],
                "places": int(result["places"]),
                "left_out": [str(reason) for reason in result["left_out"]],
                "inputs": inputs,
                "out": str(comparing.sandbox.work),
                "seconds_each": float(result["seconds_each"]),
            },
            limits,
        )
        require_regular(comparing.sandbox.work, "reference.npz", "asked.npz")
        return ExportedPython(
            model=work.version.files,
            signature=Signature.model_validate(told["signature"]),
            graph=work.version.digest,
            python=PythonModel(
                environment=environment,
                memory_mb=limits.memory_mb,
                layer=layer,
                **_answers_as(result["answers_as"]),
            ),
            proof=Proof.model_validate(told["proof"]),
            parity=tuple(ParityCase.model_validate(case) for case in told["parity"]),
            reference=store.put_file(comparing.sandbox.work / "reference.npz"),
            asked=store.put_file(comparing.sandbox.work / "asked.npz"),
            isolation=isolation,
            scoring=passing_params(answered_as(contract.scoring, result["answer"])),
            notes=(*contract.notes, *told["notes"]),
            proof_seconds=round(time.monotonic() - started, 3),
        )


def _answers_as(told: Any) -> dict[str, Any]:
    """How the model's process makes outputs of its answers, as a sandbox told it."""
    axes = {str(name): axis for name, axis in told["axes"].items() if axis in (SQUEEZED, WHOLE)}
    return {
        "json_outputs": tuple(str(name) for name in told["json"]),
        "listed": bool(told["listed"]),
        "axes": axes,
        "document": bool(told["document"]),
    }
