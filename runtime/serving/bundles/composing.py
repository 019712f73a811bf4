"""Composes a pipeline for production: puts its members together, and records what the whole answers.

There is no reference for the answers of a whole pipeline. So its golden answers are the bundle's own, from a private
server that is confined like production's. They prove that what is loaded later, wherever that is, is this bundle.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.base.progress import measuring, progress
from shiplift.runtime.composition.check import check
from shiplift.runtime.composition.checked import CheckedPipeline
from shiplift.runtime.composition.incumbents import Members
from shiplift.runtime.composition.signature import pipeline_signature
from shiplift.runtime.model.tensors import (
    GOLDEN_SAMPLES,
    Arrays,
    batch_of,
    concatenate,
    inputs_in,
    load_npz,
    one_by_one,
)
from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.model import ModelVersion
from shiplift.runtime.records.site import Site
from shiplift.runtime.serving.bundles.own_answers import own_golden, served_alone
from shiplift.runtime.serving.bundles.package import package_bundle
from shiplift.runtime.serving.bundles.scoring import ValidationScoring
from shiplift.runtime.serving.python_environment import prepare
from shiplift.runtime.serving.triton.client import TritonClient
from shiplift.runtime.spec.pipeline import BUNDLE, PipelineSpec
from shiplift.runtime.spec.target import Target
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.pipelines import read_definition


def compose(
    site: Site,
    target: Target,
    version: ModelVersion,
    exported: Exported,
    members: Members,
    scoring: ValidationScoring,
    folder: Path,
) -> tuple[Package, CheckedPipeline]:
    """The package of a pipeline's bundle for a target, made below the empty `folder`, and the checked pipeline.

    The bundle is scored on its validation data, if it has any.

    Raises:
        SpecInvalid: its check finds mistakes, such as members that were refused or retired; the target's server is not
            the members'; or it does not answer its requests, or answers the same request differently.
        ServerFailed: the bundle does not load.
        ArtifactCorrupt: a member's package is missing or altered.
        StorageFull: no space is left.
        DataInvalid, SandboxLimit: as `ValidationScoring.score`.
    """
    store = ArtifactStore(site.artifacts_uri)
    pipeline = read_definition(store.fetch(version.files, folder / "logged"))
    spec = pipeline.written.spec
    checked = check(pipeline.written, {**members.packages, **members.unusable}, pipeline.sources)
    if checked.problems:
        raise SpecInvalid("\n".join(map(str, checked.problems)), do="Correct them, and register the pipeline again.")
    _check_name(spec, version)
    _check_target(target, members.packages)
    requests = batch_of(inputs_in(load_npz(store.read(exported.reference)), exported.signature), GOLDEN_SAMPLES)

    scores: dict[str, Any] = {}

    def ask(tree: Path, models: Mapping[str, str]) -> Arrays:
        for member in members.packages.values():
            prepare(site, member, tree)
        with served_alone(site, tree, models) as client:
            signature, name = pipeline_signature(spec), serving_name(spec.name)
            golden = own_golden(client, name, signature, requests, "the pipeline", without=BUNDLE)
            scores.update(scoring.score(lambda inputs: _answers(client, spec, inputs)))
        return golden

    package = package_bundle(folder, spec, checked, pipeline.code, store, version=version.version, ask=ask)
    return package.model_copy(update={"target": target.name, **scores}), checked


def described(checked: CheckedPipeline) -> tuple[str, ...]:
    """The sentences of a report: how the pipeline runs and why, and what each member is."""
    reasons = f": {'; '.join(checked.reasons)}" if checked.reasons else ": the graph is static"
    way = "an ensemble" if checked.way == "ensemble" else "BLS, in Triton's Python backend"
    members = (
        f"member {member.name}: {member.package.model} version {member.package.version}, {member.package.described}"
        for member in checked.members
    )
    python = (f"its Python steps run in {checked.workers} worker processes",) if checked.workers else ()
    return (f"bundle {checked.digest} runs as {way}{reasons}", *python, *members)


def _check_name(spec: PipelineSpec, version: ModelVersion) -> None:
    if serving_name(spec.name) != serving_name(version.name):
        raise SpecInvalid(
            f"the pipeline is called {spec.name!r}, and was registered as {version.name!r}",
            do="Register it under its own name: `shiplift pipeline release` does.",
        )


def _check_target(target: Target, packages: Mapping[str, Package]) -> None:
    other = next((f"{name} on {each.server}" for name, each in packages.items() if each.server != target.server), "")
    if other:
        raise SpecInvalid(
            f"target {target.name} has `server: {target.server}`, and the members were released for another: {other}",
            do="Name the members' target in the spec's `targets`.",
        )


def _answers(client: TritonClient, spec: PipelineSpec, inputs: Arrays) -> Arrays:
    """The answers to many requests, sent as many at once as the pipeline has instances."""
    progress("asking the bundle about the validation data")
    signature, name = pipeline_signature(spec), serving_name(spec.name)
    with measuring(), ThreadPoolExecutor(spec.instances) as pool:
        answers = concatenate(list(pool.map(lambda row: client.infer(name, signature, row), one_by_one(inputs))))
    return {key: array for key, array in answers.items() if key != BUNDLE}
