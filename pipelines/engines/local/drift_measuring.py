"""Compares what is captured of a home's production with the data that its versions were validated on.

The validation data and the captured values are read in a sandbox. What the served model answers to the validation data
is asked once per package: that is what its outputs are compared with, in the precision that serves.
"""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shiplift.pipelines.engines.local import stack
from shiplift.pipelines.engines.local.captured import folder_of
from shiplift.runtime.base.errors import DataInvalid, NotFound, ShipliftError
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.confinement.policy import PARSE, Entry, SandboxLimits
from shiplift.runtime.confinement.workplace import Workplace, workplace
from shiplift.runtime.drift.judging import judged
from shiplift.runtime.host.outputs import require_regular
from shiplift.runtime.model.tensors import Arrays, concatenate, dump_npz, load_npz, under
from shiplift.runtime.records.drift import ColumnStatistics, Drifting, DriftReport
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.site import Site
from shiplift.runtime.serving.triton.client import OWN_REQUESTS, TritonClient
from shiplift.runtime.spec.capturing import listed_as
from shiplift.runtime.store.artifacts import ArtifactStore

_READ = Entry("shiplift.runtime.drift.entries:read_reference", PARSE)
_COMPARE = Entry("shiplift.runtime.drift.entries:compare", PARSE)
_LIMITS = SandboxLimits(memory_mb=4096, timeout_s=600, task="comparing captured rows", settings="")
_REFERENCE = "reference.npz"
_BATCH, _REQUEST_S, _ASKING_S = 32, 30.0, 120.0
_MOST_FILES = 100_000


def measured(home: Path, package: Package) -> DriftReport:
    """Compares the window that ends now. What can't be compared is no error: the report says why."""
    drifting = package.drifting
    assert drifting is not None  # noqa: S101 - callers check it
    at = time.time()
    report = DriftReport(
        model=package.model,
        version=package.version,
        at=at,
        window_s=drifting.window_s,
        threshold=drifting.threshold,
        confidence=drifting.confidence,
    )
    try:
        return _compared(home, package, drifting, report)
    except (ShipliftError, OSError) as error:
        problem = error.what if isinstance(error, ShipliftError) else error.strerror or type(error).__name__
        return report.model_copy(update={"problem": problem})


def _compared(home: Path, package: Package, drifting: Drifting, report: DriftReport) -> DriftReport:
    running = stack.read(home)
    if running is None:
        raise NotFound("no stack was started here", do="Run `shiplift up`.")
    site = stack.site(home, running)
    address = f"{stack.HOST}:{running.grpc_port}" if running.runs("triton") else ""
    reference, unasked = _reference(home, site, package, drifting, address)
    names, hidden = _names(package, drifting, unasked)
    with workplace(_COMPARE, home, site.sandbox) as place:
        order = {
            "drifting": drifting.model_dump(mode="json"),
            "hidden": hidden,
            "names": names,
            "files": _linked(home, package.model, place.folder / "window", report.at - drifting.window_s),
            "reference": str(shutil.copy(reference, place.folder / _REFERENCE)),
            "version": package.version,
            "since": report.at - drifting.window_s,
        }
        found, _ = place.sandbox.run(order, _LIMITS)
    columns = judged((ColumnStatistics.model_validate(each) for each in found["columns"]), drifting)
    fields = {name: int(found[name]) for name in ("rows", "requests", "reference_rows")}
    broken = list(map(str, found["broken"]))
    problem = f"captured files can't be read: {'; '.join(broken)}"[:500] if broken and not fields["rows"] else ""
    return report.model_copy(update={**fields, "columns": columns, "problem": problem})


def _names(package: Package, drifting: Drifting, unasked: str) -> tuple[list[str], dict[str, str]]:
    """The columns to compare, and those whose values can't be, each with the reason."""
    capturing, signature = package.capturing, package.signature
    every = [f"input/{spec.name}" for spec in signature.inputs] + [f"output/{spec.name}" for spec in signature.outputs]
    wanted = [name for name in every if not drifting.columns or listed_as(name, drifting.columns)]
    hidden: dict[str, str] = {}
    for name in wanted:
        if capturing and listed_as(name, capturing.hash):
            hidden[name] = "it is kept as a hash"
        elif capturing and listed_as(name, capturing.omit):
            hidden[name] = "it is not kept"
        elif capturing and capturing.key and not drifting.columns and name == f"input/{_own(capturing.key)}":
            hidden[name] = "it says whose row it is"
        elif unasked and name.startswith("output/"):
            hidden[name] = unasked
    return [name for name in wanted if name not in hidden], hidden


def _own(name: str) -> str:
    return name.removeprefix("input/")


def _linked(home: Path, model: str, folder: Path, since: float) -> list[str]:
    """The captured files with rows since then; a model that was never captured gets no folder of its own."""
    folder.mkdir()
    captured = folder_of(home, model)
    return captured.link_into(folder, since=since, most=_MOST_FILES) if captured.settings() else []


# --- the reference ---


def _reference(home: Path, site: Site, package: Package, drifting: Drifting, address: str) -> tuple[Path, str]:
    """The file with the validation data's inputs, and the served model's answers; and why these are missing.

    Raises:
        DataInvalid: there are no validation data, or they are not what clients send.
    """
    artifact = drifting.reference
    if artifact is None:
        raise DataInvalid(f"version {package.version} has no validation data", do="Log them, and release it again.")
    folder, name = home / "production" / "drift", serving_name(package.model)
    inputs = folder / f"{name}.{artifact.sha256[:16]}.npz"
    whole = folder / f"{name}.{artifact.sha256[:16]}.{package.repository.sha256[:16]}.npz"
    if whole.is_file():
        return whole, ""
    if not inputs.is_file():
        with workplace(_READ, home, site.sandbox) as place:
            write_atomically(inputs, _read(site, package, drifting, place), mode=0o600)
    if unasked := _answered(package, inputs, whole, address):
        return inputs, unasked
    for old in folder.glob(f"{name}.*.npz"):
        if old not in (whole, inputs):
            old.unlink(missing_ok=True)
    return whole, ""


def _answered(package: Package, inputs: Path, whole: Path, address: str) -> str:
    """Asks the served model the validation data, and writes these with its answers; returns why it could not."""
    if package.stateful or package.signature.streamed:
        return "answers that depend on earlier requests, or are streamed, are not compared"
    if not address:
        return "production's server does not run, so it could not answer the validation data"
    try:
        rows = load_npz(inputs)
        answers = _answers(address, package, under("input/", rows))
        body = dump_npz({**rows, **{f"output/{name}": array for name, array in answers.items()}})
    except ShipliftError as error:
        return f"the served model does not answer the validation data: {error.what}"[:300]
    write_atomically(whole, body, mode=0o600)
    return ""


def _read(site: Site, package: Package, drifting: Drifting, place: Workplace) -> bytes:
    assert drifting.reference is not None  # noqa: S101 - the caller checks it
    file = ArtifactStore(site.artifacts_uri).fetch(drifting.reference, place.folder / "validation")
    order: dict[str, Any] = {
        "drifting": drifting.model_dump(mode="json"),
        "signature": package.signature.model_dump(mode="json"),
        "file": str(file),
    }
    place.sandbox.run(order, _LIMITS)
    require_regular(place.sandbox.work, _REFERENCE)
    return (place.sandbox.work / _REFERENCE).read_bytes()


def _answers(address: str, package: Package, inputs: Arrays) -> Arrays:
    """The served version's answers to rows, a few at a time: production's own requests come first."""
    name, signature = serving_name(package.model), package.signature
    with TritonClient(address, timeout_s=_REQUEST_S, request_id=OWN_REQUESTS) as client:
        size = min(_BATCH, max(1, client.config(name).max_batch_size))
        began, found = time.monotonic(), []
        for rows in _batches(inputs, size):
            found.append(client.infer(name, signature, rows, version=package.version))
            if time.monotonic() - began > _ASKING_S:
                break
    return concatenate(found)


def _batches(inputs: Arrays, size: int) -> Iterator[Arrays]:
    for at in range(0, len(next(iter(inputs.values()))), size):
        yield {name: array[at : at + size] for name, array in inputs.items()}
