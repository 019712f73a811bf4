"""The package of an adopted model: its repository, and what it answers itself."""

from pathlib import Path

from shiplift.runtime.families.packaging.questions import of_reference
from shiplift.runtime.families.work import Packaging
from shiplift.runtime.host.folders import scratch_folder
from shiplift.runtime.model.tensors import GOLDEN_SAMPLES, ROWS, Arrays, batch_of, dump_npz, inputs_in, load_npz, under
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.kinds.exported import ExportedAdopted
from shiplift.runtime.records.kinds.package import AdoptedPackage
from shiplift.runtime.records.limits import Limits
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.records.verdict import Packages
from shiplift.runtime.serving.bundles.adopting import AdoptedTree, write_adopted
from shiplift.runtime.serving.bundles.own_answers import own_golden, served_alone
from shiplift.runtime.serving.triton.repository import GOLDEN
from shiplift.runtime.store.artifacts import ArtifactStore


def package_adopted(work: Packaging[ExportedAdopted]) -> Packages:
    """The adopted repository as the only package of its release.

    Raises:
        NotAdmitted: its files have mistakes.
        SpecInvalid: it does not answer its requests, or answers the same request differently.
        ServerFailed: Triton can't load it.
        StorageFull: no space is left.
    """
    site, exported = work.site, work.exported
    limits = Limits().within(site.policy.served)
    with scratch_folder(Path(site.home)) as folder:
        logged, tree = work.store.fetch(exported.model, folder / "logged"), folder / "package"
        written = write_adopted(tree, logged, work.version, limits)
        requests = batch_of(
            inputs_in(load_npz(work.store.read(exported.reference)), exported.signature), GOLDEN_SAMPLES
        )
        with served_alone(site, tree, (*written.companions, written.name)) as client:
            golden = own_golden(client, written.name, exported.signature, requests, "the adopted model")
        (tree / GOLDEN).write_bytes(dump_npz(golden))
        package = _package(work, written, tree, golden)
    notes = (f"adopted as it is: {', '.join((*written.companions, written.name))}",)
    return Packages(target=work.target.name, packages=(package,), checks=(), notes=notes)


def _package(work: Packaging[ExportedAdopted], written: AdoptedTree, tree: Path, golden: Arrays) -> AdoptedPackage:
    return AdoptedPackage(
        target=work.target.name,
        server=work.target.server,
        model=work.version.name,
        version=work.version.version,
        precision="fp32",
        config=written.config,
        repository=work.store.put_tree(tree),
        signature=work.exported.signature,
        scoring=work.exported.scoring,
        questions=_questions(golden, work.exported.signature, work.store),
        companions=written.companions,
        batches=written.batches,
        limits=Limits().within(work.site.policy.served),
        nodes=work.target.nodes,
    )


def _questions(golden: Arrays, signature: Signature, store: ArtifactStore) -> Artifact | None:
    """The requests with the model's own answers, one at a time; none if an answer has several rows."""
    if any((rows != 1).any() for rows in under(ROWS, golden).values()):
        return None
    return store.put_bytes(dump_npz(of_reference(golden, signature)))
