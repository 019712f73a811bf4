"""Scans a model's files before anyone loads them: modelaudit's findings, and ONNX files that refer outside the model.

Runs inside the sandbox, since a parser of hostile files is a target too. `objections` decides outside what the findings
mean: modelaudit also reports scans it could not finish, and flags pickles that frameworks themselves write.
"""

import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from shiplift.runtime.base.errors import NotAdmitted
from shiplift.runtime.records.model import Finding, Scan

# Top-level modules that frameworks' pickles refer to. Accepted only if the spec says so, and loaded in the sandbox.
_FRAMEWORKS = {
    "__main__",
    "__torch__",
    "_codecs",
    "cloudpickle",
    "collections",
    "joblib",
    "lightgbm",
    "numpy",
    "pandas",
    "scipy",
    "sklearn",
    "torch",
}
PRELOAD = ("modelaudit.core", "onnx")
_UNFINISHED = {"S213", "S902"}  # modelaudit's rules for "the analysis did not complete"


def scan_files(folder: str) -> dict[str, Any]:
    """Scans every file below `folder`; returns a `Scan` as JSON. A sandbox entry."""
    started = time.monotonic()
    root = Path(folder)
    findings = [*_modelaudit(root), *_onnx_files(root)]
    scan = Scan(
        scanner=_version(),
        files=sum(1 for path in root.rglob("*") if path.is_file()),
        findings=tuple(findings),
        seconds=time.monotonic() - started,
    )
    return scan.model_dump(mode="json")


def objections(scan: Scan, *, pickle: Literal["refuse", "sandbox"]) -> list[Finding]:
    """The findings that refuse a version. `sandbox` accepts pickles that call known frameworks."""
    return [finding for finding in scan.findings if finding.severity == "critical" and not _accepted(finding, pickle)]


def refusal(findings: Sequence[Finding]) -> NotAdmitted:
    """The error that names the first objections."""
    first = "; ".join(f"{finding.file}: {finding.what}" for finding in findings[:3])
    more = f" (and {len(findings) - 3} more)" if len(findings) > 3 else ""
    return NotAdmitted(
        f"the scan found code or data that must not be loaded: {first}{more}",
        do="Log the model without code: pytorch with serialization_format='pt2', sklearn with 'skops', or as ONNX. "
        "Pickles of known frameworks can be accepted with `admission: {pickle: sandbox}`.",
    )


def _accepted(finding: Finding, pickle: str) -> bool:
    return pickle == "sandbox" and finding.names.split(".")[0] in _FRAMEWORKS


def _modelaudit(root: Path) -> Iterator[Finding]:
    from modelaudit.core import scan_model_directory_or_file  # noqa: PLC0415 - takes 1 s, in the sandbox only

    for issue in scan_model_directory_or_file(str(root)).issues:
        details = issue.details or {}
        named = str(details.get("associated_global") or details.get("import_reference") or "")
        severity = str(getattr(issue.severity, "value", issue.severity))
        unfinished = bool(details.get("analysis_incomplete")) or (issue.rule_code in _UNFINISHED and not named)
        if severity not in ("critical", "warning") or (severity == "warning" and unfinished):
            continue
        yield Finding(
            severity="warning" if unfinished or severity == "warning" else "critical",
            file=_relative(str(issue.location or ""), root),
            what=issue.message[:300],
            names=named,
        )


def _onnx_files(root: Path) -> Iterator[Finding]:
    for path in sorted(root.rglob("*.onnx")):
        name = path.relative_to(root).as_posix()
        for problem in onnx_problems(path):
            yield Finding(severity="critical", file=name, what=problem)


def onnx_problems(path: Path) -> Iterator[str]:
    """Why an ONNX file must not be opened: it is not ONNX, or its weights are outside its folder."""
    import onnx  # noqa: PLC0415 - in the sandbox only
    from google.protobuf.message import DecodeError  # noqa: PLC0415

    try:
        model = onnx.load(path, load_external_data=False)
    except DecodeError:
        yield "it is truncated, or not an ONNX file"
        return
    if not model.graph.node:
        yield "its graph is empty: it is truncated, or not an ONNX file"
    for tensor in onnx.external_data_helper._get_all_tensors(model):
        info = {entry.key: entry.value for entry in tensor.external_data}
        if "location" in info:
            yield from _location_problems(info["location"], tensor.name, path.parent)


def _location_problems(location: str, tensor: str, folder: Path) -> Iterator[str]:
    outside = PurePosixPath(location).is_absolute() or ".." in PurePosixPath(location).parts or "\\" in location
    if outside:
        yield f"the external data of {tensor!r} are outside the model: {location!r}"
    elif not (folder / location).is_file() or (folder / location).is_symlink():
        yield f"the external data of {tensor!r} are missing: {location!r}"


def _relative(location: str, root: Path) -> str:
    return re.sub(rf"^{re.escape(str(root))}/?", "", location) or "(all files)"


def _version() -> str:
    from importlib.metadata import version  # noqa: PLC0415

    return f"modelaudit {version('modelaudit')}"
