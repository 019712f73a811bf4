"""The package of a pipeline: its members and what calls them, asked and scored as a whole."""

from pathlib import Path

from shiplift.runtime.families.packaging.questions import of_reference
from shiplift.runtime.families.work import Packaging
from shiplift.runtime.gates.quality import regression_check, score_check, scored
from shiplift.runtime.host.folders import scratch_folder
from shiplift.runtime.model.tensors import ROWS, dump_npz, load_npz, under
from shiplift.runtime.precision.limits import limits_of
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.kinds.exported import ExportedPipeline
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.verdict import Outcome, Packages
from shiplift.runtime.serving.bundles.composing import compose, described
from shiplift.runtime.serving.bundles.scoring import ValidationScoring
from shiplift.runtime.serving.triton.repository import GOLDEN
from shiplift.runtime.store.artifacts import ArtifactStore


def package_pipeline(work: Packaging[ExportedPipeline]) -> Packages:
    """The bundle, unless its score keeps it from passing.

    Raises:
        SpecInvalid: the members do not fit the pipeline, or can't be members.
        ServerFailed: Triton can't load the bundle, or the bundle does not answer.
    """
    site = work.site
    limits = limits_of(work.quantization, "scoring the pipeline", site.policy)
    scoring = ValidationScoring(
        site=site, signature=work.exported.signature, datasets=work.datasets, data=work.data, limits=limits
    )
    with scratch_folder(Path(site.home)) as folder:
        bundle, checked = compose(site, work.target, work.version, work.exported, work.members, scoring, folder)
    bundle = bundle.model_copy(update={"questions": _questions(bundle, work.store)})
    before = scored(work.champion.package) if work.champion.package else None
    whole = scored(bundle)
    found = (
        score_check(whole, work.quality, work.data),
        regression_check(before, whole, work.score_target.worse, work.quality),
    )
    checks = tuple(filter(None, found))
    passes = all(check.verdict is Outcome.PASS for check in checks)
    return Packages(target=bundle.target, packages=(bundle,) if passes else (), checks=checks, notes=described(checked))


def _questions(bundle: Package, store: ArtifactStore) -> Artifact | None:
    """The requests with the bundle's own answers, one at a time; none if an answer has several rows."""
    golden = load_npz(store.read_from_tree(bundle.repository, GOLDEN))
    if any((rows != 1).any() for rows in under(ROWS, golden).values()):
        return None
    return store.put_bytes(dump_npz(of_reference(golden, bundle.signature)))
