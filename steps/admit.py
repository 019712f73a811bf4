"""Admission: whether a version is complete and safe to load, and what its team asks of the release.

A webhook's name and version number are all that is used of it; everything else is read from the registry. Files are
hashed and scanned before any of them is parsed as anything but YAML or JSON.
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
    """Resolves, hashes, scans and reads a version.

    Raises:
        NotFound: the registry has no such version.
        NotAdmitted: it has no signature, input example or known flavor, is too large, or its files are unsafe.
        SpecInvalid: the release spec is wrong.
        Temporary: the registry does not respond.
    """
    registry, store = Registry(site.registry_uri), ArtifactStore(site.artifacts_uri)
    with workplace(_SCAN, Path(site.home)) as place:
        info = registry.version(check_name(request.model), request.version)
        run_id = registry.run_of(info)
        progress("fetching the model's files")
        model = registry.download_model(info, place.folder / "model")
        spec = _resolve_spec(request, registry, run_id, model, place.folder / "logged")
        _check_site(site, spec)
        _check_size(model, spec.admission.max_size_mb)
        logged = read_model(model)
        scan_result = _scan(model, place, spec)
        admitted = _admitted(
            info, run_id, spec, logged, scan_result, model, store, _datasets(registry, run_id, spec, model, store)
        )
        return admitted.model_copy(update={"recorded_requests": _recorded(registry, run_id, spec, model, store)})


def _resolve_spec(request: Request, registry: Registry, run_id: str, model: Path, logged: Path) -> ReleaseSpec:
    """The spec in the request, else the one logged with the model or its run, else the defaults.

    Raises:
        SpecInvalid: the spec is wrong, or is for another model.
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
    """A file logged with the model (`extra_files`), or as an artifact of its run."""
    for file in (model / path, model / "extra_files" / Path(path).name):
        if file.is_file():
            return file
    to.mkdir(exist_ok=True)
    return registry.download_run_file(run_id, path, to)


def _datasets(registry: Registry, run_id: str, spec: ReleaseSpec, model: Path, store: ArtifactStore) -> Datasets:
    stored: dict[str, Artifact | None] = {}
    for name, path in (("validation", spec.data.validation), ("calibration", spec.data.calibration)):
        file = _logged(registry, run_id, path, model, model.parent / "logged")
        stored[name] = store.put_file(file) if file else None
    return Datasets(
        validation=stored["validation"],
        validation_name=spec.data.validation if stored["validation"] else "",
        calibration=stored["calibration"],
        calibration_name=spec.data.calibration if stored["calibration"] else "",
    )


def _recorded(
    registry: Registry, run_id: str, spec: ReleaseSpec, model: Path, store: ArtifactStore
) -> RecordedRequests:
    file = _logged(registry, run_id, spec.load.requests, model, model.parent / "logged")
    return RecordedRequests(file=store.put_file(file), name=spec.load.requests) if file else RecordedRequests()


def _check_site(site: Site, spec: ReleaseSpec) -> None:
    if spec.serving.rate_limiter and not site.place.rate_limiter:
        raise NotAdmitted(
            "the spec asks for `serving.rate_limiter`, but production runs without Triton's rate limiter",
            do="Start it with `shiplift up --rate-limiter`, or leave that section out.",
        )


def _check_size(folder: Path, limit_mb: float) -> None:
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if size > limit_mb * 2**20:
        raise NotAdmitted(
            f"the model's files have {size / 2**20:.0f} MiB, the limit is {limit_mb:.0f} MiB",
            do="Raise `admission.max_size_mb` in the spec, or register a smaller model.",
        )


def _scan(model: Path, place: Workplace, spec: ReleaseSpec) -> Scan:
    progress("scanning the model's files")
    with _examples_aside(model, place.folder / "examples"):
        result, _ = place.sandbox.run({"folder": str(model)}, _SCAN_LIMITS)
    scan_result = Scan.model_validate(result)
    if objections := scan.objections(scan_result, pickle=spec.admission.pickle):
        raise scan.refusal(objections)
    return scan_result


@contextmanager
def _examples_aside(model: Path, to: Path) -> Iterator[None]:
    """Hides MLflow's input examples from the scanner while the context lasts.

    The scanner parses JSON in Python, each file many times: an example with images took it more than ten minutes. A
    file that parses as JSON is data, and only our own reader opens these two.
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
    info: VersionInfo, run_id: str, spec: ReleaseSpec, logged: LoggedModel, scan_result: Scan, model: Path,
    store: ArtifactStore, datasets: Datasets,
) -> Admitted:  # fmt: skip
    files = store.put_tree(model)
    return Admitted(
        model_version=ModelVersion(
            name=info.name,
            version=info.version,
            digest=files.sha256,
            flavor=logged.flavor,
            files=files,
            run_id=run_id,
            registered_at=info.created_at,
        ),
        contract=Contract(
            signature=logged.signature, example=store.put_bytes(dump_npz(logged.example)), tabular=logged.tabular
        ),
        datasets=datasets,
        scan=scan_result,
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
