"""The export of Python models, which records what they answer.

There is no graph to convert to. The logged model itself is served, in an environment of its own, so its answers to the
example are the reference that production has to meet.
"""

from pathlib import Path

from shiplift.runtime.base.progress import measuring, progress
from shiplift.runtime.confinement.policy import EVALUATE, PYTHON_HOST, Entry, SandboxLimits
from shiplift.runtime.confinement.workplace import workplace
from shiplift.runtime.host.outputs import require_regular
from shiplift.runtime.model.python.bundle import write_bundle
from shiplift.runtime.model.python.environments import ensure, packed, readable
from shiplift.runtime.model.python.resolving import resolve
from shiplift.runtime.records.model import Contract, Exported, ModelVersion, ParityCase, PythonModel
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.spec.model import Conversion
from shiplift.runtime.store.artifacts import ArtifactStore

ANSWER = Entry("shiplift.runtime.model.python.entry:answer", PYTHON_HOST)
COMPARE = Entry("shiplift.runtime.admission.exports.python_answers:compare", EVALUATE)


def export_python(
    site: Site, version: ModelVersion, contract: Contract, conversion: Conversion
) -> Exported:  # fmt: skip
    """Makes the model's environment, and records its answers.

    Raises:
        NotAdmitted, PolicyRefused: its requirements can't be installed, or may not.
        ExportFailed: it does not load or answer.
        SandboxLimit: it needs more memory or time than the spec allows.
        StorageFull: there is no space for its environment.
        Temporary: the package index can't be reached.
    """
    environment = resolve(site, contract.requirements)
    root = ensure(site, environment)
    store, home = ArtifactStore(site.artifacts_uri), Path(site.home)
    layer = packed(site, environment, store)  # before the model's code has run beside it
    limits = SandboxLimits(
        memory_mb=min(conversion.memory_mb, site.policy.memory_mb),
        timeout_s=min(conversion.timeout_s, site.policy.timeout_s), task="asking the Python model", settings="export",
    )  # fmt: skip
    inputs = [spec.model_dump(mode="json") for spec in contract.signature.inputs]
    with (
        workplace(ANSWER, home, site.sandbox, read=[root]) as asking,
        workplace(COMPARE, home, site.sandbox) as comparing,
        measuring(),
    ):
        source = store.fetch(version.files, asking.folder / "source")
        code = write_bundle(asking.folder / "code")
        progress("asking the model in the sandbox")
        result, isolation = asking.sandbox.run(
            {
                "code": str(code),
                "environment": str(root),
                "model": str(source),
                "read": readable(root, code, source),
                "example": str(store.fetch(contract.example, asking.folder / "example.npz")),
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
                "answers": str(answers), "sets": [str(name) for name in result["sets"]], "inputs": inputs,
                "out": str(comparing.sandbox.work),
            },
            limits,
        )  # fmt: skip
        require_regular(comparing.sandbox.work, "reference.npz")
        return Exported(
            model=version.files,
            signature=Signature.model_validate(told["signature"]),
            opset=0,
            graph=version.digest,
            python=PythonModel(environment=environment, memory_mb=limits.memory_mb, layer=layer),
            parity=tuple(ParityCase.model_validate(case) for case in told["parity"]),
            reference=store.put_file(comparing.sandbox.work / "reference.npz"),
            isolation=isolation,
            notes=(*contract.notes, *told["notes"]),
        )
