"""Admission: whether a version is complete and safe to load, and what its team asks of the release.

Only the name and the version number of a webhook are used; everything else is read from the registry. This step
fetches, hashes and stores the files, which needs credentials. The sandbox parses and scans them, in one run.
"""

from pathlib import Path

from shiplift.runtime.admission.captured_requests import captured_requests
from shiplift.runtime.admission.captures import check_capture, check_drift
from shiplift.runtime.admission.inspection import INSPECT, InspectedVersion, inspect
from shiplift.runtime.admission.logged_files import LoggedFiles, datasets_of, recorded_of, resolve_spec
from shiplift.runtime.admission.policy import check_site, check_size
from shiplift.runtime.admission.shadows import check_shadow
from shiplift.runtime.base.progress import progress
from shiplift.runtime.confinement.workplace import expect, workplace
from shiplift.runtime.families import table
from shiplift.runtime.model.contracts import likely_flavor
from shiplift.runtime.records.model import Datasets, ModelVersion
from shiplift.runtime.records.request import Request
from shiplift.runtime.records.site import Site
from shiplift.runtime.spec.admitted import Admitted
from shiplift.runtime.spec.document import ReleaseSpec
from shiplift.runtime.spec.measurement import CAPTURED, ComparisonTarget, LatencyTarget, ScoreTarget
from shiplift.runtime.spec.serving_settings import with_states
from shiplift.runtime.spec.target import Target, Wanted
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.registry.terms import VersionInfo, check_name
from shiplift.runtime.store.same_version import require_registration
from shiplift.runtime.store.version_files import version_files
from shiplift.runtime.targets.catalogue import catalogue


def admit(site: Site, request: Request) -> Admitted:
    """Resolves, hashes, scans and reads a version.

    Raises:
        NotFound: the registry has no such version.
        VersionReplaced: it has another one of that number.
        NotAdmitted: it has no signature, input example or known flavor, is too large, or its files are unsafe.
        SpecInvalid: the release spec is wrong.
        DataInvalid: the spec asks for captured requests, and there are none, too few, or none that the version takes.
        PolicyRefused: the release spec asks for more than the site allows.
        Temporary: the registry does not respond.
    """
    registry, store = LoggedFiles(version_files(site.registry_uri)), ArtifactStore(site.artifacts_uri)
    with workplace(INSPECT, Path(site.home), site.sandbox) as place:
        info = require_registration(registry.version(check_name(request.model), request.version), request)
        run_id = registry.run_of(info)
        progress("fetching the model's files")
        model = registry.download_model(info, place.folder / "model", limit_mb=site.policy.max_size_mb)
        expect(likely_flavor(model))
        spec = resolve_spec(request, registry, run_id, model, place.folder / "logged")
        check_site(site, spec)
        check_size(model, min(spec.admission.max_size_mb, site.policy.max_size_mb))
        inspected = inspect(model, place, spec, store, Path(site.home) / "inspections")
        progress("storing the version")
        table.recognised(inspected).check(site, spec, inspected)
        datasets = datasets_of(registry, run_id, spec, model, store)
        admitted = _admitted(site, info, run_id, spec, inspected, model, store, datasets)
        if spec.load.requests == CAPTURED:
            requests = captured_requests(site, request.model, spec, admitted.contract.signature, store)
        else:
            requests = recorded_of(registry, run_id, spec, model, store)
        return admitted.model_copy(update={"recorded_requests": requests, "logged": registry.found})


def _targets(site: Site, spec: ReleaseSpec) -> list[Target]:
    """The release's targets; names that the catalogue lacks are left to the stage that finds them."""
    listed = catalogue(Path(site.home)) if spec.capture.share else {}
    found = (listed.get(entry) if isinstance(entry, str) else entry for entry in spec.targets)
    return [target for target in found if target]


def _admitted(
    site: Site,
    info: VersionInfo,
    run_id: str,
    spec: ReleaseSpec,
    inspected: InspectedVersion,
    model: Path,
    store: ArtifactStore,
    datasets: Datasets,
) -> Admitted:
    files = store.put_tree(model)
    contract = table.recognised(inspected).contract(site, spec, inspected)
    check_capture(site, spec, contract.signature, _targets(site, spec))
    check_drift(site, spec, contract.signature, datasets)
    check_shadow(site, spec, contract)
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
        contract=contract.model_copy(update={"scoring": inspected.scoring}),
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
        promoting=spec.promotion,
        capture=spec.capture,
        drift=spec.drift,
    )
