"""Scans a model's files before any loader opens them: what each is, and what it would import, call or open.

Everything is judged by lists of what is allowed. modelaudit is a second opinion: its critical findings also refuse a
version, except for names that our own lists accept, and numbers that resemble a pickle. The scan runs inside the
sandbox, since a parser of hostile files is a target; `refusal` runs outside.
"""

import functools
import inspect
import json
import re
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from shiplift.runtime.admission import allowed, contents
from shiplift.runtime.admission.allowed import Pickle
from shiplift.runtime.admission.contents import ScanRules, objection
from shiplift.runtime.admission.formats import archives, huggingface_files, mlmodel, onnx_files, pickles
from shiplift.runtime.admission.judging import NOT_ALLOWED
from shiplift.runtime.base.errors import NotAdmitted
from shiplift.runtime.base.files import Irregular, TreeFile, open_regular, read_regular, regular_files
from shiplift.runtime.model.contracts import MAX_EXAMPLE_BYTES, METADATA, metadata
from shiplift.runtime.model.text.tasks import TEXT_FLAVORS
from shiplift.runtime.records.model import Finding, Scan

_UNFINISHED = {"S213", "S902"}  # modelaudit's rules for "the analysis did not complete"
_NESTED = re.compile(r"\(nested |^Nested pickle ")  # modelaudit's words for a pickle inside another one's bytes
_POSITION = re.compile(r" \(pos [0-9]+\)$")  # after the names of members
_SHOWN, _KEPT = 3, 200


def scan_files(
    folder: Path, examples: Path, *, pickle: Pickle, unpacked_mb: int, python: bool = False, code: Collection[str] = ()
) -> Scan:
    """Scans every file below `folder`, and the input examples in the folder `examples`.

    A Python model (`python`) consists of its author's code, which is opened only in the sandbox. The scan reports what
    it finds in such files, but refuses nothing. The same holds for a pipeline's files that are its `code`.

    The examples are separate because modelaudit parses JSON in Python, each file many times: one with images took it
    more than ten minutes. A file that parses as JSON is data, and only our own reader opens it.
    """
    started = time.monotonic()
    judge = ScanRules(pickle=pickle, budget_bytes=unpacked_mb << 20)
    try:
        files, data = regular_files(folder), regular_files(examples)
    except Irregular as error:
        return _scan([objection("(all files)", str(error))], 0, started)
    findings = [finding for file in files for finding in _file(file, judge)]
    findings = [
        finding.model_copy(update={"severity": "warning"}) if python or finding.file in code else finding
        for finding in findings
    ]
    findings += [finding for file in data for finding in _file(file, judge)]
    findings += [finding for file in data for finding in _example(file)]
    findings += [objection(METADATA, problem) for problem in _mlmodel(folder, python=python)]
    findings = [objection(*problem) for problem in _huggingface(folder, files)] + findings
    if not findings and not python:  # the second opinion takes seconds, and can only refuse
        findings += _modelaudit(folder, judge)
    return _scan(findings, len(files) + len(data), started)


def pickled(folder: Path, *, unpacked_mb: int) -> str:
    """The first file below `folder` that `pickle: refuse` would refuse; empty if there is none.

    Of files that a scan has accepted, these are the pickles of frameworks.
    """
    judge = ScanRules(pickle="refuse", budget_bytes=unpacked_mb << 20)
    return next((finding.file for file in regular_files(folder) for finding in _file(file, judge)), "")


def objections(scan: Scan) -> list[Finding]:
    """The findings that refuse a version."""
    return [finding for finding in scan.findings if finding.severity == "critical"]


_NO_CODE = (
    "Log the model without code: `mlflow.pytorch.log_model(..., serialization_format='pt2')`, "
    "`mlflow.sklearn.log_model(..., serialization_format='skops')`, or as ONNX."
)
_ACCEPT = "Or write `admission: {pickle: sandbox}` in the spec: it accepts pickles of known frameworks."
_UNKNOWN = (
    "No setting accepts a pickle that uses other names: log the `best_estimator_` of a search, use functions of NumPy "
    "or scikit-learn in place of your own, or log it with `mlflow.pyfunc.log_model(python_model=...)`, which "
    "`admission: {python: sandbox}` accepts."
)


def refusal(findings: Sequence[Finding]) -> NotAdmitted:
    """The error that names the first objections."""
    first = "; ".join(f"{finding.file}: {finding.what}" for finding in findings[:_SHOWN])
    more = f" (and {len(findings) - _SHOWN} more)" if len(findings) > _SHOWN else ""
    unknown = any(NOT_ALLOWED in finding.what for finding in findings)
    return NotAdmitted(
        f"the scan found code or data that must not be loaded: {first}{more}",
        do=f"{_NO_CODE} {_UNKNOWN if unknown else _ACCEPT}",
    )


def _scan(findings: list[Finding], files: int, started: float) -> Scan:
    return Scan(scanner=_version(), files=files, findings=tuple(findings[:_KEPT]), seconds=time.monotonic() - started)


def _file(file: TreeFile, judge: ScanRules) -> Iterator[Finding]:
    yield from contents.by_name(file.name)
    try:
        with open_regular(file.path) as opened:
            if archives.is_archive(opened):
                yield from _archive(file, opened, judge)
            yield from contents.by_bytes(file.name, opened, judge)
    except Irregular as error:
        yield objection(file.name, str(error))
    if contents.suffix(file.name) == "onnx":
        yield from (objection(file.name, problem) for problem in onnx_files.problems(file.path))
    if contents.suffix(file.name) in ("h5", "hdf5"):
        yield objection(file.name, "a whole model as HDF5 can carry code: save it as .keras")


def _archive(file: TreeFile, opened: Any, judge: ScanRules) -> Iterator[Finding]:
    """Checks a file that zip readers accept; the archive may begin in the middle of other data."""
    if opened.read(4) == b"PK\x03\x04":
        opened.seek(0)
        yield from archives.findings(file.name, opened, judge)
    else:
        yield objection(file.name, "it hides a zip archive behind other data")
    opened.seek(0)


def _example(file: TreeFile) -> Iterator[Finding]:
    try:
        json.loads(read_regular(file.path, MAX_EXAMPLE_BYTES))
    except (ValueError, RecursionError) as error:
        yield objection(file.name, f"it is not JSON: {type(error).__name__}")


def _mlmodel(folder: Path, *, python: bool) -> Iterator[str]:
    try:
        yield from mlmodel.problems(metadata(folder), python=python)
    except NotAdmitted as error:
        yield error.what


def _huggingface(folder: Path, files: Sequence[TreeFile]) -> Iterator[tuple[str, str]]:
    try:
        flavors = metadata(folder).get("flavors")
    except NotAdmitted:  # `_mlmodel` reports it
        return
    if isinstance(flavors, dict) and not flavors.keys().isdisjoint(TEXT_FLAVORS):
        yield from huggingface_files.problems(files)


def _modelaudit(root: Path, judge: ScanRules) -> Iterator[Finding]:
    from modelaudit.core import scan_model_directory_or_file  # noqa: PLC0415 - takes 1 s, in the sandbox only

    _judge_names_alone()
    for issue in scan_model_directory_or_file(str(root), cache_enabled=False).issues:
        details = issue.details or {}
        named = str(details.get("associated_global") or details.get("import_reference") or "")
        severity = str(getattr(issue.severity, "value", issue.severity))
        unfinished = bool(details.get("analysis_incomplete")) or (issue.rule_code in _UNFINISHED and not named)
        if severity not in ("critical", "warning") or (severity == "warning" and unfinished):
            continue
        file = _relative(str(issue.location or ""), root)
        if _nested(file, issue.message) and not _installed(named):
            continue
        listed = _listed(named, judge.pickle)
        critical = severity == "critical" and not (unfinished or listed or _harmless(file, named, judge))
        yield Finding(
            severity="critical" if critical else "warning",
            file=file,
            what=issue.message[:300],
            names=named,
        )


def _harmless(file: str, named: str, judge: ScanRules) -> bool:
    """Whether a finding is about numbers that are only read, or about texts and bytes of a pickle that names no more.

    Numbers can spell anything, such as a word that attackers use, or the beginning of another pickle.
    """
    file = _POSITION.sub("", file)
    return file in judge.raw or (not named and file in judge.walked)


def _judge_names_alone() -> None:
    """Keeps modelaudit from following the calls in the source of everything that a pickle names.

    Following takes 3 s, and tells about the packages installed here, not about the model. Each name has passed our own
    lists by then, and modelaudit's findings behind such a name are dropped anyway (`_listed`).
    """
    from modelaudit_picklescan.api import PickleScanner  # noqa: PLC0415 - as above

    if "enrich_call_graph" in inspect.signature(PickleScanner.scan_stream).parameters:
        PickleScanner.scan_stream = functools.partialmethod(PickleScanner.scan_stream, enrich_call_graph=False)


def _nested(file: str, message: str) -> bool:
    """Whether a finding is about bytes inside a pickle: numbers that resemble one, unless they name something."""
    return bool(_NESTED.search(file) or _NESTED.search(message))


def _installed(named: str) -> bool:
    """Whether what a finding names could be imported. Codes of extensions can't, since none is registered."""
    module, _, name = named.rpartition(".")
    return bool(module) and module != "copyreg.extension" and pickles.importable(pickles.Global(module, name))


def _listed(named: str, pickle: Pickle) -> bool:
    """Whether our own lists, which have judged the same file, accept what modelaudit objects to."""
    module, _, name = named.removesuffix(".__call__").rpartition(".")
    accepts = allowed.is_framework if pickle == "sandbox" else allowed.is_data
    return bool(module) and accepts((module, name))


def _relative(location: str, root: Path) -> str:
    return re.sub(rf"^{re.escape(str(root))}/?", "", location) or "(all files)"


def _version() -> str:
    from importlib.metadata import version  # noqa: PLC0415

    return f"shiplift allow-lists, modelaudit {version('modelaudit')}"
