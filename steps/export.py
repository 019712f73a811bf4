"""Export: the logged model as ONNX, and the proof that both give the same answers.

Loading and converting happen in one sandbox, the comparison in another: the first ran the model's code, so nobody opens
what it wrote outside a sandbox, and it has no part in the proof.
"""

from pathlib import Path

from shiplift.runtime.admission.exports.generation import export_generation
from shiplift.runtime.admission.exports.python import export_python
from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.base.progress import measuring, progress
from shiplift.runtime.confinement.policy import EVALUATE, Entry, SandboxLimits
from shiplift.runtime.confinement.workplace import Workplace, workplace
from shiplift.runtime.host.outputs import require_regular
from shiplift.runtime.model.tensors import dump_npz, load_npz
from shiplift.runtime.records.model import (
    FALL_BACK,
    PIPELINE,
    PYTHON,
    Contract,
    Exported,
    Isolation,
    ModelVersion,
    ParityCase,
    TextFront,
)
from shiplift.runtime.records.site import Site, SitePolicy
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.spec.model import Conversion
from shiplift.runtime.store.artifacts import ArtifactStore

CONVERT = Entry("shiplift.runtime.model.conversion.entry:convert")
VERIFY = Entry("shiplift.runtime.admission.verification:verify", EVALUATE)
_SEED = 20240229
_FELL_BACK = (
    "Warning: the model could not be exported to ONNX, so its own code serves it, as fast as mlflow.pyfunc and without "
    "lower precisions (export.fallback). Why: {why}."
)


def export(site: Site, model_version: ModelVersion, contract: Contract, conversion: Conversion) -> Exported:
    """Converts the version and compares both models on the example and on random inputs of batch 1, 2 and 7.

    A Python model is not converted: it gets an environment, and its answers are recorded (`export_python`). So does one
    that does not convert, if the spec says `fallback: python`. A model that generates text becomes a stateful OpenVINO
    model, and tokens are compared (`export_generation`). A pipeline of models is kept as it was logged.

    Raises:
        ExportFailed: the model does not load, convert or run.
        SandboxLimit: it needs more memory or time than the spec allows.
        ArtifactCorrupt: the files differ from those admitted.
    """
    if conversion.preprocess and (model_version.flavor in (PYTHON, PIPELINE) or contract.generates):
        raise ExportFailed(
            "`export.preprocess` is for a model that becomes a graph of pixels, and this one does not",
            do="Leave it out; a pipeline's decoder is a member: `{image: ...}`.",
        )
    if model_version.flavor == PYTHON:
        return export_python(site, model_version, contract, conversion)
    if model_version.flavor == PIPELINE:
        return _as_logged(site, model_version, contract)
    if contract.generates:
        return export_generation(site, model_version, contract, conversion)
    try:
        return _export_graph(site, model_version, contract, conversion)
    except ExportFailed as error:
        falls_back = conversion.fallback == "python" and model_version.flavor in FALL_BACK
        if not falls_back or conversion.preprocess:  # its own code takes pixels
            raise
        return _fallen_back(site, model_version, contract, conversion, why=error.what.rstrip("."))


def _as_logged(site: Site, version: ModelVersion, contract: Contract) -> Exported:
    """A pipeline of models with its requests: there is nothing to convert, and so no parity to prove."""
    store = ArtifactStore(site.artifacts_uri)
    example = load_npz(store.read(contract.example))
    reference = store.put_bytes(dump_npz({f"input/{name}": array for name, array in example.items()}))
    return Exported(
        model=version.files, signature=contract.signature, opset=0, graph=version.digest, composes=True, parity=(),
        reference=reference, notes=contract.notes,
    )  # fmt: skip


def _fallen_back(
    site: Site, model_version: ModelVersion, contract: Contract, conversion: Conversion, *, why: str
) -> Exported:
    progress("no graph: the model's own code serves it")
    try:
        exported = export_python(site, model_version, contract, conversion)
    except ExportFailed as error:
        raise ExportFailed(f"{why}; nor can its own code serve it: {error.what}", do=error.do) from error
    return exported.model_copy(update={"notes": (_FELL_BACK.format(why=why), *exported.notes)})


def _export_graph(site: Site, model_version: ModelVersion, contract: Contract, conversion: Conversion) -> Exported:
    home, store = Path(site.home), ArtifactStore(site.artifacts_uri)
    # Both start now: the second's imports run while the first converts.
    with (
        workplace(CONVERT, home, site.sandbox) as converting,
        workplace(VERIFY, home, site.sandbox) as verifying,
        measuring(),
    ):
        signature, sets, notes, seen, isolation = _convert(
            converting,
            store,
            model_version,
            contract,
            conversion,
            _limits(conversion, "loading or converting the model", site.policy),
        )
        work, written = converting.sandbox.work, verifying.folder / "written"
        require_regular(work, "model/model.onnx", "answers.npz")
        written.mkdir()
        texts = ("text", "texts.npz") if seen else ()
        for name in ("model", "answers.npz", *(["torchscript"] if conversion.torchscript else []), *texts):
            (work / name).rename(written / name)
        result, _ = verifying.sandbox.run(
            {
                "model": str(written / "model" / "model.onnx"),
                "script": str(written / "torchscript" / "model.pt") if conversion.torchscript else "",
                "answers": str(written / "answers.npz"),
                "signature": signature.model_dump(mode="json"),
                "sets": sets,
                "text": str(written / "text") if seen else "",
                "out": str(verifying.sandbox.work),
            },
            _limits(conversion, "comparing both models", site.policy),
        )
        require_regular(verifying.sandbox.work, "reference.npz")
        return Exported(
            model=store.put_tree(written / "model"),
            signature=signature,
            torchscript=store.put_tree(written / "torchscript") if conversion.torchscript else None,
            text=_text(store, seen, written) if seen else None,
            opset=result["opset"],
            graph=result["graph"],
            parity=tuple(ParityCase.model_validate(case) for case in result["parity"]),
            reference=store.put_file(verifying.sandbox.work / "reference.npz"),
            isolation=isolation,
            notes=(*contract.notes, *notes),
        )


def _text(store: ArtifactStore, seen: Signature, written: Path) -> TextFront:
    reference = store.put_file(written / "texts.npz")
    return TextFront(files=store.put_tree(written / "text"), signature=seen, reference=reference)


def _convert(
    place: Workplace,
    store: ArtifactStore,
    version: ModelVersion,
    contract: Contract,
    conversion: Conversion,
    limits: SandboxLimits,
) -> tuple[Signature, list[str], tuple[str, ...], Signature | None, Isolation]:
    """Runs the model's code: the signature, the sets of inputs that were answered, notes, and the isolation.

    The second signature is what clients of a text model see.
    """
    source = store.fetch(version.files, place.folder / "source")
    example = store.fetch(contract.example, place.folder / "example.npz")
    progress("converting to ONNX in the sandbox")
    result, isolation = place.sandbox.run(
        {
            "folder": str(source),
            "flavor": version.flavor,
            "signature": contract.signature.model_dump(mode="json"),
            "example": str(example),
            "out": str(place.sandbox.work),
            "settings": conversion.model_dump(mode="json"),
            "tabular": contract.tabular,
            "seed": _SEED,
        },
        limits,
    )
    signature = Signature.model_validate(result["signature"])
    seen = Signature.model_validate(result["text"]) if result["text"] else None
    notes = tuple(str(note) for note in result["notes"])
    return signature, [str(name) for name in result["sets"]], notes, seen, isolation


def _limits(conversion: Conversion, task: str, policy: SitePolicy) -> SandboxLimits:
    return SandboxLimits(
        memory_mb=min(conversion.memory_mb, policy.memory_mb), timeout_s=min(conversion.timeout_s, policy.timeout_s),
        task=task, settings="export",
    )  # fmt: skip
