"""Admission: whether a version is complete and safe to load, and what its team asks of the release.

A webhook's name and version number are all that is used of it; everything else is read from the registry. Here files
are fetched, hashed and stored, which needs credentials. They are parsed and scanned in the sandbox, in one run.
"""

from pathlib import Path

from shiplift.runtime.admission import policy
from shiplift.runtime.admission.inspection import INSPECT, Inspected, inspect
from shiplift.runtime.base.errors import NotAdmitted, SpecInvalid
from shiplift.runtime.base.files import Irregular, read_regular, regular_files
from shiplift.runtime.base.progress import progress
from shiplift.runtime.confinement.workplace import expect, workplace
from shiplift.runtime.families import table
from shiplift.runtime.model.contracts import likely_flavor
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.model import Datasets, ModelVersion, RecordedRequests
from shiplift.runtime.records.request import Request
from shiplift.runtime.records.site import Site
from shiplift.runtime.spec.admitted import Admitted
from shiplift.runtime.spec.document import MAX_SPEC_BYTES, ReleaseSpec, parse
from shiplift.runtime.spec.measurement import ComparisonTarget, LatencyTarget, ScoreTarget
from shiplift.runtime.spec.model import OwnMetric
from shiplift.runtime.spec.serving import Metrics, with_states
from shiplift.runtime.spec.target import Wanted
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.registry.terms import FOLDER, VersionInfo, check_name
from shiplift.runtime.store.version_files import VersionFiles, version_files

SPEC_FILE = "shiplift.yaml"
_MAX_METRIC_BYTES = 1 << 20


def admit(site: Site, request: Request) -> Admitted:
    """Resolves, hashes, scans and reads a version.

    Raises:
        NotFound: the registry has no such version.
        NotAdmitted: it has no signature, input example or known flavor, is too large, or its files are unsafe.
        SpecInvalid: the release spec is wrong.
        PolicyRefused: the release spec asks for more than the site allows.
        Temporary: the registry does not respond.
    """
    registry, store = version_files(site.registry_uri), ArtifactStore(site.artifacts_uri)
    with workplace(INSPECT, Path(site.home), site.sandbox) as place:
        info = registry.version(check_name(request.model), request.version)
        run_id = registry.run_of(info)
        progress("fetching the model's files")
        model = registry.download_model(info, place.folder / "model", limit_mb=site.policy.max_size_mb)
        expect(likely_flavor(model))
        spec = _resolve_spec(request, registry, run_id, model, place.folder / "logged")
        _check_site(site, spec)
        _check_size(model, min(spec.admission.max_size_mb, site.policy.max_size_mb))
        inspected = inspect(model, place, spec, store, Path(site.home) / "inspections")
        table.recognised(inspected).check(site, spec, inspected)
        datasets = _datasets(registry, run_id, spec, model, store)
        admitted = _admitted(info, run_id, spec, inspected, model, store, datasets)
        return admitted.model_copy(update={"recorded_requests": _recorded(registry, run_id, spec, model, store)})


def _resolve_spec(request: Request, registry: VersionFiles, run_id: str, model: Path, logged: Path) -> ReleaseSpec:
    """The spec in the request, else the one logged with the model or its run, else the defaults.

    Raises:
        SpecInvalid: the spec is wrong, or is for another model.
    """
    text = request.spec
    if not text:
        file = _logged(registry, run_id, f"{FOLDER}/{SPEC_FILE}", model, logged)
        text = _spec_text(file) if file else ""
    spec = parse(text)
    if spec.model not in (None, request.model):
        raise SpecInvalid(f"the spec is for model {spec.model!r}, not {request.model!r}", do="Change its `model:`.")
    return spec


def _spec_text(file: Path) -> str:
    try:
        return read_regular(file, MAX_SPEC_BYTES).decode(errors="replace")
    except Irregular as error:
        raise SpecInvalid(f"the spec can't be read: {error}", do="Shorten it and try again.") from error


def _logged(registry: VersionFiles, run_id: str, path: str, model: Path, to: Path) -> Path | None:
    """A file logged with the model (`extra_files`), or as an artifact of its run."""
    for file in (model / path, model / "extra_files" / Path(path).name):
        if file.is_file():
            return file
    to.mkdir(exist_ok=True)
    return registry.download_run_file(run_id, path, to)


def _datasets(registry: VersionFiles, run_id: str, spec: ReleaseSpec, model: Path, store: ArtifactStore) -> Datasets:
    stored: dict[str, Artifact | None] = {}
    for name, path in (("validation", spec.data.validation), ("calibration", spec.data.calibration)):
        file = _logged(registry, run_id, path, model, model.parent / "logged")
        stored[name] = store.put_file(file) if file else None
    return Datasets(
        metric=_metric(registry, run_id, spec, model, store),
        validation=stored["validation"],
        validation_name=spec.data.validation if stored["validation"] else "",
        calibration=stored["calibration"],
        calibration_name=spec.data.calibration if stored["calibration"] else "",
    )


def _metric(
    registry: VersionFiles, run_id: str, spec: ReleaseSpec, model: Path, store: ArtifactStore
) -> Artifact | None:
    """The file of the author's own metric, if the spec names one."""
    if not isinstance(spec.data.metric, OwnMetric):
        return None
    path = f"{FOLDER}/{spec.data.metric.python}"
    file = _logged(registry, run_id, path, model, model.parent / "logged")
    if file is None:
        raise SpecInvalid(f"data.metric names {path}, which was not logged", do="Log the file beside the spec.")
    try:
        return store.put_bytes(read_regular(file, _MAX_METRIC_BYTES))
    except Irregular as error:
        raise SpecInvalid(f"data.metric's {path} can't be read: {error}", do="Log a plain, small file.") from error


def _recorded(
    registry: VersionFiles, run_id: str, spec: ReleaseSpec, model: Path, store: ArtifactStore
) -> RecordedRequests:
    file = _logged(registry, run_id, spec.load.requests, model, model.parent / "logged")
    return RecordedRequests(file=store.put_file(file), name=spec.load.requests) if file else RecordedRequests()


def _check_site(site: Site, spec: ReleaseSpec) -> None:
    policy.check(site.policy, spec)
    if spec.serving.rate_limiter and not site.place.rate_limiter:
        raise NotAdmitted(
            "the spec asks for `serving.rate_limiter`, but production runs without Triton's rate limiter",
            do="Start it with `shiplift up --rate-limiter`, or leave that section out.",
        )
    if spec.serving.metrics != Metrics() and site.place.one_server:
        raise NotAdmitted(
            "the spec has `serving.metrics`, but here one server serves all models",
            do="Leave that out, and set them for all: `shiplift up --metrics-interval-ms`, `--metrics-quantile`.",
        )


def _check_size(folder: Path, limit_mb: float) -> None:
    try:
        size = sum(file.size_bytes for file in regular_files(folder))
    except Irregular as error:
        raise NotAdmitted(f"the model's files can't be admitted: {error}", do="Log plain files and folders.") from error
    if size > limit_mb * 2**20:
        raise NotAdmitted(
            f"the model's files have {size / 2**20:.0f} MiB, the limit is {limit_mb:.0f} MiB",
            do="Raise `admission.max_size_mb` in the spec, or register a smaller model.",
        )


def _admitted(
    info: VersionInfo, run_id: str, spec: ReleaseSpec, inspected: Inspected, model: Path, store: ArtifactStore,
    datasets: Datasets,
) -> Admitted:  # fmt: skip
    files = store.put_tree(model)
    return Admitted(
        model_version=ModelVersion(
            name=info.name,
            version=info.version,
            digest=files.sha256,
            flavor=inspected.flavor,
            files=files,
            run_id=run_id,
            registered_at=info.created_at,
        ),
        contract=table.recognised(inspected).contract(inspected),
        datasets=datasets,
        scan=inspected.scan,
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
        score_target=ScoreTarget(worse=spec.slo.regression.score),
        comparison_target=ComparisonTarget(
            **spec.slo.regression.model_dump(include=set(ComparisonTarget.model_fields))
        ),
        serving=with_states(spec.serving, inspected.states),
        rollout=spec.rollout,
    )
