"""A pipeline's bundle as a package, so that promotion, verification and rollback treat it like any model's.

Clients call the pipeline's own model; its members are the package's member models. The golden requests are the whole
pipeline's, and expect the bundle's digest in the answers, so they also prove which bundle answers.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.composition.checked import CheckedPipeline
from shiplift.runtime.composition.signature import pipeline_signature
from shiplift.runtime.model.tensors import MEMBER, Arrays, dump_npz, first_requests, load_npz
from shiplift.runtime.records.kinds.package import Package, PipelinePackage
from shiplift.runtime.records.model import PythonEnvironment
from shiplift.runtime.records.precision import Precision
from shiplift.runtime.records.serving import BundleMember, ServerNeeds, ServingConfig
from shiplift.runtime.serving.bundles.names import member_name, members_by_name
from shiplift.runtime.serving.bundles.repository import write_bundle
from shiplift.runtime.serving.triton.client import TOLERANCE
from shiplift.runtime.serving.triton.repository import GOLDEN
from shiplift.runtime.spec.pipeline import BUNDLE, PipelineSpec
from shiplift.runtime.store.artifacts import ArtifactStore


def package_bundle(
    folder: Path,
    spec: PipelineSpec,
    checked: CheckedPipeline,
    sources: Mapping[str, bytes],
    store: ArtifactStore,
    *,
    version: int,
    ask: Callable[[Path, Mapping[str, str]], Arrays],
) -> PipelinePackage:
    """The package of a checked pipeline's bundle, written below the new or empty `folder` and stored.

    `ask` gets the bundle's repository and a description of its models, in the order in which to load them. It returns
    the golden requests with the right answers, as `golden_arrays` does. The package adds one golden request per member.

    Raises:
        SpecInvalid: the members can't share a server.
        ArtifactCorrupt: a member's package is missing or altered.
        StorageFull: no space is left.
    """
    members = [member.package for member in checked.members]
    environment = _environment(members)
    tree = folder / "bundle"
    models = write_bundle(tree, spec, checked, sources, store, version)
    golden = ask(tree, models)
    count = next(len(array) for name, array in golden.items() if name.startswith("input/"))
    digest = {f"output/{BUNDLE}": np.full(count, checked.digest.encode(), dtype=object)}
    (tree / GOLDEN).write_bytes(dump_npz(golden | digest | _golden_of_members(checked, store)))
    return PipelinePackage(
        target=members[0].target,
        server=members[0].server,
        model=spec.name,
        version=version,
        precision=_loosest(members),
        config=ServingConfig(max_batch=1, queue_delay_us=0, instances=spec.instances, threads=1),
        repository=store.put_tree(tree),
        signature=pipeline_signature(spec),
        environment=environment,
        companions=tuple(name for name in models if name != serving_name(spec.name)),
        members=tuple(
            BundleMember(
                name=member.name,
                served=member_name(member.package, checked.digest),
                model=member.package.model,
                version=member.package.version,
                follows=spec.members[member.name].follows,
                signature=member.package.signature,
                precision=member.package.precision,
            )
            for member in checked.members
        ),
        nodes=members[0].nodes,
        needs=_needs(members),
    )


def _golden_of_members(checked: CheckedPipeline, store: ArtifactStore) -> Arrays:
    """The first golden request of each member's own package, under its name in the server.

    Raises:
        ArtifactCorrupt: a member's package is missing or altered.
    """
    golden: Arrays = {}
    for name, package in members_by_name(checked).items():
        own = first_requests(load_npz(store.read_from_tree(package.repository, GOLDEN)), 1)
        golden |= {f"{MEMBER}{name}/{key}": array for key, array in own.items()}
    return golden


def _loosest(members: list[Package]) -> Precision:
    """The members' precision with the largest tolerance, which then holds for the whole."""
    return max((member.precision for member in members), key=TOLERANCE.__getitem__)


def _needs(members: list[Package]) -> ServerNeeds:
    """What a server needs for all members."""
    needs = [member.needs for member in members]
    return ServerNeeds(
        rate_limiter=any(each.rate_limiter for each in needs),
        flags=tuple(dict.fromkeys(flag for each in needs for flag in each.flags)),
        request_timeout_s=max(each.request_timeout_s for each in needs),
    )


def _environment(members: list[Package]) -> PythonEnvironment | None:
    """The environment of the members that are Python models; a package has room for one.

    Raises:
        SpecInvalid: there are no members, or two need different ones.
    """
    if not members:
        raise SpecInvalid("the pipeline has no members, so there is nothing to serve", do="Add a registered model.")
    needed = {each.digest: (member.model, each) for member in members if (each := member.python_environment)}
    if len(needed) > 1:
        names = " and ".join(model for model, _ in needed.values())
        raise SpecInvalid(
            f"the members {names} are Python models with different environments, the limit is 1 for a pipeline",
            do="Log them with the same requirements.",
        )
    return next((environment for _, environment in needed.values()), None)
