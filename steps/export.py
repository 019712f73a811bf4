"""Export: the logged model as ONNX, and the proof that both give the same answers.

Loading and converting happen in the sandbox. The comparison happens here, with ONNX Runtime on the written file,
because the sandbox is not trusted.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np

from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.base.progress import measuring, progress
from shiplift.runtime.host.sandbox import Entry, Limits, workplace
from shiplift.runtime.host.scan import onnx_problems
from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.tensors import Arrays, dump_npz, load_npz
from shiplift.runtime.records.model import Contract, Exported, ModelVersion, ParityCase
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.spec.model import Conversion
from shiplift.runtime.store.artifacts import ArtifactStore

CONVERT = Entry("shiplift.runtime.model.conversion.entry:convert")
_SEED = 20240229


def export(site: Site, model_version: ModelVersion, contract: Contract, conversion: Conversion) -> Exported:
    """Converts the version and compares both models on the example and on random inputs of batch 1, 2 and 7.

    Raises:
        ExportFailed: the model does not load, convert or run.
        SandboxLimit: it needs more memory or time than the spec allows.
        ArtifactCorrupt: the files differ from those admitted.
    """
    store = ArtifactStore(site.artifacts_uri)
    with workplace(CONVERT, Path(site.home)) as place, measuring():
        source = store.fetch(model_version.files, place.folder / "source")
        example = place.folder / "example.npz"
        example.write_bytes(store.read(contract.example))
        progress("converting to ONNX in the sandbox")
        work = place.sandbox.work
        result, isolation = place.sandbox.run(
            {
                "folder": str(source),
                "flavor": model_version.flavor,
                "signature": contract.signature.model_dump(mode="json"),
                "example": str(example),
                "out": str(work),
                "settings": conversion.model_dump(mode="json"),
                "tabular": contract.tabular,
                "seed": _SEED,
            },
            Limits(memory_mb=conversion.memory_mb, timeout_s=conversion.timeout_s),
        )
        _check_written(work)
        progress("comparing both models")
        answers = load_npz(work / "answers.npz")
        signature = Signature.model_validate(result["signature"])
        cases = _parity(work / "model" / "model.onnx", answers, signature, [str(name) for name in result["sets"]])
        return Exported(
            model=store.put_tree(work / "model"),
            signature=signature,
            torchscript=store.put_tree(work / "torchscript") if conversion.torchscript else None,
            opset=_opset(work / "model" / "model.onnx"),
            parity=cases,
            reference=store.put_bytes(dump_npz(_part(answers, "example/"))),
            isolation=isolation,
            notes=tuple(str(note) for note in result["notes"]),
        )


def _check_written(work: Path) -> None:
    """Refuses links, and graphs that refer to files outside: what the sandbox wrote is opened here."""
    links = [path.name for path in work.rglob("*") if path.is_symlink()]
    problems = list(onnx_problems(work / "model" / "model.onnx"))
    if unsafe := [*(f"{link} is a link" for link in links), *problems]:
        raise ExportFailed(
            f"the sandbox wrote files that must not be opened: {'; '.join(unsafe)}",
            do="Check what the model's code does when it is loaded.",
        )


def _parity(model: Path, answers: Arrays, signature: Signature, sets: list[str]) -> tuple[ParityCase, ...]:
    running = onnx_models.session(model)
    return tuple(_case(running, answers, signature, name) for name in sets)


def _case(running: Any, answers: Arrays, signature: Signature, name: str) -> ParityCase:
    inputs = {spec.name: answers[f"{name}/input/{spec.name}"] for spec in signature.inputs}
    batch = len(next(iter(inputs.values())))
    try:
        exported = onnx_models.answer(running, inputs)
    except Exception as error:
        raise ExportFailed(
            f"the exported model does not answer a batch of {batch}: {' '.join(str(error).split())[:400]}",
            do="Make the model independent of its batch size, or export it to ONNX yourself and log that.",
        ) from error
    original = {spec.name: answers[f"{name}/output/{spec.name}"] for spec in signature.outputs}
    differences = [
        onnx_models.differences(original[spec.name], np.asarray(exported[spec.name])) for spec in signature.outputs
    ]
    bad = [spec for spec, (absolute, _) in zip(signature.outputs, differences, strict=True) if math.isinf(absolute)]
    return ParityCase(
        inputs=name,
        batch=batch,
        max_abs=max(absolute for absolute, _ in differences),
        max_rel=max(relative for _, relative in differences),
        problem="; ".join(_problem(original[s.name], np.asarray(exported[s.name]), s) for s in bad),
    )


def _problem(original: Any, exported: Any, spec: TensorSpec) -> str:
    if original.size != exported.size:
        return f"the original gives {spec.name!r} with shape {original.shape}, the exported model with {exported.shape}"
    for source, array in (("the original", original), ("the exported model", exported)):
        if array.dtype.kind == "f" and np.isnan(array).any():
            return f"{source} gives NaN in {spec.name!r}"
    return f"{spec.name!r} differs where it must be equal"


def _part(arrays: Arrays, prefix: str) -> Arrays:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _opset(model: Path) -> int:
    import onnx  # noqa: PLC0415 - takes 0.1 s

    loaded = onnx.load(model, load_external_data=False)
    return next((int(entry.version) for entry in loaded.opset_import if entry.domain in ("", "ai.onnx")), 0)
