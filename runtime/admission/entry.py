"""The half of admission that runs in the sandbox: one run reads what the author declared, and scans every file."""

import pickle  # only to write a file to scan
import zipfile
from collections import OrderedDict
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from shiplift.runtime.admission.adopting.registered import is_adopted, read_adopted
from shiplift.runtime.admission.allowed import Pickle
from shiplift.runtime.admission.examples import missing_example
from shiplift.runtime.admission.own_library import OwnLibrary, of_library
from shiplift.runtime.admission.pipelines import is_pipeline, read_pipeline
from shiplift.runtime.admission.scan import objections, scan_files
from shiplift.runtime.model.contracts import read_model
from shiplift.runtime.model.tensors import Arrays, dump_npz
from shiplift.runtime.records.model import FALL_BACK, PYTHON

_SCANNERS = ("text", "manifest", "zip", "pytorch_zip", "pickle", "onnx", "metadata", "jinja2_template")
PRELOAD = ("modelaudit.core", "onnx", *(f"modelaudit.scanners.{name}_scanner" for name in _SCANNERS))
EXAMPLE = "example.npz"
_OWN_CODE = "Warning: its own Python serves the model, since its files hold its author's code ({file}: {what})."
_SMALL = {"MLmodel": "flavors: {}", "requirements.txt": "torch==2", "conda.yaml": "name: small"}


def inspect(
    *,
    folder: str,
    examples: str,
    out: str,
    pickle: Pickle,
    python: Pickle,
    own_library: bool,
    unpacked_mb: int,
    states: dict[str, str] | None,
) -> dict[str, Any]:
    """The contract and the scan of the MLflow model in `folder`; writes the input example to `out/example.npz`.

    `states` are those that the spec names; None: look for some. With `own_library`, what it takes to serve the model as
    it was logged is read, too. Files to which the scan objects are not opened any further.

    Raises:
        NotAdmitted: the version has no signature, no usable input example, or no known flavor.
        SpecInvalid: the version is a pipeline with mistakes.
    """
    code: tuple[str, ...] = ()
    read = partial(read_model, Path(folder), Path(examples), states, python=python == "sandbox")
    judge = partial(scan_files, Path(folder), Path(examples), pickle=pickle, unpacked_mb=unpacked_mb)
    if is_pipeline(Path(folder)):
        logged, code = read_pipeline(Path(folder))
    elif is_adopted(Path(folder)):
        logged, code = read_adopted(Path(folder))
    else:
        logged = read()
    scan = judge(python=logged.flavor == PYTHON, code=code)
    refused = objections(scan)
    if refused and python == "sandbox" and logged.flavor in FALL_BACK and objections(judge(pickle="sandbox")):
        note = _OWN_CODE.format(file=refused[0].file, what=refused[0].what)
        logged, scan = replace(read(as_python=True), notes=(note,)), judge(python=True)
    refused = objections(scan)
    own = own_library and not refused and logged.flavor in FALL_BACK
    library = of_library(Path(folder), logged.flavor, pickle=pickle, unpacked_mb=unpacked_mb) if own else OwnLibrary()
    example: Arrays | None = {} if refused else logged.example
    notes = list(logged.notes)
    if example is None:
        example, note = missing_example(Path(folder), logged)
        notes.append(note)
    (Path(out) / EXAMPLE).write_bytes(dump_npz(example))
    return {
        "flavor": logged.flavor,
        "signature": logged.signature.model_dump(mode="json"),
        "tabular": logged.tabular,
        "states": logged.states,
        "requirements": list(logged.requirements or library.requirements),
        "own_code": library.own_code,
        "no_python": library.obstacle.model_dump(mode="json") if library.obstacle else None,
        "task": logged.task,
        "scoring": logged.scoring.model_dump(mode="json") if logged.scoring else None,
        "code": list(code),
        "notes": notes,
        "scan": scan.model_dump(mode="json"),
    }


def rehearse(_flavor: str) -> None:
    """Scans a small model, so that the scanners have compiled their patterns and loaded what they need on first use."""
    with TemporaryDirectory() as name:
        folder, examples = Path(name) / "model", Path(name) / "examples"
        examples.mkdir()
        folder.mkdir()
        for file, text in _SMALL.items():
            (folder / file).write_text(text)
        inner = BytesIO()
        with zipfile.ZipFile(inner, "w") as archive:
            archive.writestr("model/data.pkl", pickle.dumps({"small": OrderedDict()}))
        with zipfile.ZipFile(folder / "model.pt2", "w") as archive:
            archive.writestr("model/models/model.json", "{}")
            archive.writestr("model/data/weights/weight_0", bytes(4096))
            archive.writestr("model/data/sample_inputs/model.pt", inner.getvalue())
        scan_files(folder, examples, pickle="refuse", unpacked_mb=1)
