"""Admission: is this version what it says, is it safe to load, and what does its team ask of the release.

Nothing a webhook said is used but the name and the number; everything else is read from the registry here. Files are
digested and scanned before any of them is parsed as more than YAML or JSON.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shiplift.runtime.base.errors import NotAdmitted, SpecInvalid
from shiplift.runtime.base.progress import progress
from shiplift.runtime.host import scan
from shiplift.runtime.host.sandbox import Entry, Limits, Workplace, workplace
from shiplift.runtime.model.contracts import LoggedModel, read_model
from shiplift.runtime.model.tensors import dump_npz
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.model import Contract, Datasets, ModelVersion, RecordedRequests, Scan
from shiplift.runtime.records.request import Request
from shiplift.runtime.records.site import Site
from shiplift.runtime.spec.admitted import Admitted
from shiplift.runtime.spec.document import ReleaseSpec, parse
from shiplift.runtime.spec.measurement import ComparisonTarget, LatencyTarget
from shiplift.runtime.spec.target import Wanted
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.registry import FOLDER, Registry, VersionInfo, check_name

SPEC_FILE = "shiplift.yaml"
_SCAN = Entry("shiplift.runtime.host.scan:scan_files")
_SCAN_LIMITS = Limits(memory_mb=4096, timeout_s=600, task="scanning the model's files", settings="")
_EXAMPLES = ("input_example.json", "serving_input_example.json")  # as MLflow names them


def admit(site: Site, request: Request) -> Admitted:
    """Resolves, digests, scans and reads a version.

    Raises:
        NotFound: the registry has no such version.
        NotAdmitted: it lacks a signature, an input example or a known flavor, is too large, or its files are unsafe.
        SpecInvalid: the release spec is wrong.
        Temporary: the registry does not answer.
    """
    registry, store = Registry(site.registry_uri), ArtifactStore(site.artifacts_uri)
    with workplace(_SCAN, Path(site.home)) as place:
        info = registry.version(check_name(request.model), request.version)
        run_id = registry.run_of(info)
        model, logged = place.folder / "model", place.folder / "logged"
        progress("fetching the model's files")
        got = registry.download_model(info, model)
        spec = _resolve_spec(request, registry, run_id, got, logged)
        _check_site(site, spec)
        _check_size(got, spec.admission.max_size_mb)
        promise = read_model(got)
        found = _scanned(got, place, spec)
        admitted = _admitted(
            info, run_id, spec, promise, found, got, store, _datasets(registry, run_id, spec, got, store)
        )
        return admitted.model_copy(update={"recorded_requests": _recorded(registry, run_id, spec, got, store)})


def _resolve_spec(request: Request, registry: Registry, run_id: str, model: Path, logged: Path) -> ReleaseSpec:
    """The spec given by hand, else the one logged with the model or its run, else the defaults.

    Raises:
        SpecInvalid: it is wrong, or it is another model's.
    """
    text = request.spec
    if not text:
        file = _logged(registry, run_id, f"{FOLDER}/{SPEC_FILE}", model, logged)
        text = file.read_text(errors="replace") if file else ""
    spec = parse(text)
    if spec.model not in (None, request.model):
        raise SpecInvalid(f"the spec is for model {spec.model!r}, not {request.model!r}", do="Change its `model:`.")
    return spec


def _logged(registry: Registry, run_id: str, path: str, model: Path, to: Path) -> Path | None:
    """A file logged beside the model (`extra_files`), or as an artifact of its run."""
    for beside in (model / path, model / "extra_files" / Path(path).name):
        if beside.is_file():
            return beside
    to.mkdir(exist_ok=True)
    return registry.download_run_file(run_id, path, to)


def _datasets(registry: Registry, run_id: str, spec: ReleaseSpec, model: Path, store: ArtifactStore) -> Datasets:
    kept: dict[str, Artifact | None] = {}
    for name, path in (("validation", spec.data.validation), ("calibration", spec.data.calibration)):
        file = _logged(registry, run_id, path, model, model.parent / "logged")
        kept[name] = store.put_file(file) if file else None
    return Datasets(
        validation=kept["validation"],
        validation_name=spec.data.validation if kept["validation"] else "",
        calibration=kept["calibration"],
        calibration_name=spec.data.calibration if kept["calibration"] else "",
    )


def _recorded(
    registry: Registry, run_id: str, spec: ReleaseSpec, model: Path, store: ArtifactStore
) -> RecordedRequests:
    file = _logged(registry, run_id, spec.load.requests, model, model.parent / "logged")
    return RecordedRequests(file=store.put_file(file), name=spec.load.requests) if file else RecordedRequests()


def _check_site(site: Site, spec: ReleaseSpec) -> None:
    if spec.serving.rate_limiter and not site.place.rate_limiter:
        raise NotAdmitted(
            "the spec asks for `serving.rate_limiter`, production runs without Triton's rate limiter",
            do="Start it with `shiplift up --rate-limiter`, or leave that section out.",
        )


def _check_size(folder: Path, limit_mb: float) -> None:
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if size > limit_mb * 2**20:
        raise NotAdmitted(
            f"the model's files have {size / 2**20:.0f} MiB, the limit is {limit_mb:.0f} MiB",
            do="Raise `admission.max_size_mb` in the spec, or register a smaller model.",
        )


def _scanned(model: Path, place: Workplace, spec: ReleaseSpec) -> Scan:
    progress("scanning the model's files")
    with _aside(model, place.folder / "examples"):
        said, _ = place.sandbox.run({"folder": str(model)}, _SCAN_LIMITS)
    found = Scan.model_validate(said)
    if objections := scan.objections(found, pickle=spec.admission.pickle):
        raise scan.refusal(objections)
    return found


@contextmanager
def _aside(model: Path, to: Path) -> Iterator[None]:
    """Keeps MLflow's input examples from the scanner, for as long as the context lasts.

    It reads JSON in Python, a file many times: an image's example took it more than ten minutes. What parses as JSON
    is data, and nothing but our reader of examples opens these two.
    """
    to.mkdir()
    examples = [file for name in _EXAMPLES if _is_json(file := model / name)]
    for file in examples:
        file.rename(to / file.name)
    try:
        yield
    finally:
        for file in examples:
            (to / file.name).rename(file)


def _is_json(file: Path) -> bool:
    if not file.is_file() or file.is_symlink():
        return False
    try:
        json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        return False
    return True


def _admitted(
    info: VersionInfo, run_id: str, spec: ReleaseSpec, promise: LoggedModel, found: Scan, model: Path,
    store: ArtifactStore, datasets: Datasets,
) -> Admitted:  # fmt: skip
    files = store.put_tree(model)
    return Admitted(
        model_version=ModelVersion(
            name=info.name,
            version=info.version,
            digest=files.sha256,
            flavor=promise.flavor,
            files=files,
            run_id=run_id,
            registered_at=info.created_at,
        ),
        contract=Contract(
            signature=promise.signature, example=store.put_bytes(dump_npz(promise.example)), tabular=promise.tabular
        ),
        datasets=datasets,
        scan=found,
        wanted=Wanted(targets=spec.targets),
        conversion=spec.export,
        data=spec.data,
        quantization=spec.quantization,
        quality=spec.quality,
        search_space=spec.search,
        load=spec.load,
        slo=spec.slo,
        policy=spec.policy,
        latency_target=LatencyTarget(p99_ms=spec.slo.p99_ms),
        comparison_target=ComparisonTarget(
            **spec.slo.regression.model_dump(include=set(ComparisonTarget.model_fields))
        ),
        serving=spec.serving,
        rollout=spec.rollout,
    )
