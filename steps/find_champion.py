"""Finds what production serves: the version that a challenger is compared with, and a pipeline's members.

It asks production and the registry as they are now, so its result is never cached.
"""

from shiplift.runtime.base.errors import PromotionConflict
from shiplift.runtime.base.progress import progress
from shiplift.runtime.composition.checked import Unusable
from shiplift.runtime.composition.incumbents import Incumbents, Members
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.promotion import Champion
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.records.site import Site
from shiplift.runtime.serving.bundles.decoders import members_of
from shiplift.runtime.serving.champion import champion_state, promoted
from shiplift.runtime.serving.production import Production, production
from shiplift.runtime.spec.document import MAX_SPEC_BYTES
from shiplift.runtime.spec.pipeline import PIPELINE_FILE, parse
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.members import Promoted
from shiplift.runtime.store.registry.client import Registry
from shiplift.runtime.store.registry.rest import PATIENT_S, RestRegistry
from shiplift.runtime.store.registry.terms import PIPELINE_TAG


def find_champion(site: Site, request: Request, trigger: Trigger) -> Incumbents:
    """The champion and the package it was promoted with, version 0 if there is none; and a pipeline's members.

    The champion is what production serves, even if the registry's aliases were moved. A version that is itself the
    champion is compared with the previous one, as when it was promoted, so that a rerun changes nothing.

    Raises:
        PromotionConflict: the registry has no genuine record of the champion's promotion, so nothing can be compared.
        SpecInvalid: the version is a pipeline, and its definition can't be read.
        Temporary: the registry or production does not respond.
    """
    registry, place = Registry(site.registry_uri), production(site)
    champion = _champion(site, request, trigger, registry, place)
    if why := place.quarantine(request.model, request.version):
        progress(f"version {request.version} served before, and {why}")
        champion = champion.model_copy(update={"quarantined": why})
    return Incumbents(champion=champion, members=_members(site, request, registry, place))


def _champion(site: Site, request: Request, trigger: Trigger, registry: Registry, place: Production) -> Champion:
    now = champion_state(site, request.model, registry, place)
    for drift in () if now.unfinished else now.drift:
        progress(drift.sentence)
    version, promotion, own = now.champion, now.promotion, None
    if version == request.version:
        if promotion is None:
            progress(f"production serves a deleted version {version}, so there is nothing to compare with")
        own = promotion.package if promotion else None
        version, promotion = now.previous, promoted(site, request.model, now.previous, registry)
    if version in (0, request.version):
        return Champion(own=own)
    if promotion is None and not trigger.allow_older:
        raise PromotionConflict(
            f"production serves version {version} of {request.model!r}, but the registry has no genuine record of its "
            "promotion: the version was deleted, or the record altered",
            do=f"Run `shiplift rollback {request.model}`, or release without a comparison: `shiplift release "
            f"{request.model}/{request.version} --allow-older`.",
        )
    return Champion(version=version, package=promotion.package if promotion else None, own=own)


def _members(site: Site, request: Request, registry: Registry, place: Production) -> Members:
    """A pipeline's members; none if the version is not a pipeline.

    A tag of the version says whether it is a pipeline, so that other versions cost no request. The tag is only a hint:
    a release is refused if the tag is set on something else, or removed.
    """
    info = registry.version(request.model, request.version)
    text = registry.read_model_file(info, PIPELINE_FILE, MAX_SPEC_BYTES) if PIPELINE_TAG in info.tags else None
    if text is None:
        return Members()
    rest = RestRegistry(site.registry_uri, timeout_s=PATIENT_S)
    store = ArtifactStore(site.artifacts_uri)
    find = Promoted(
        registry=rest,
        champion=place.serving,
        store=store,
        promotion=lambda member: promoted(site, member.name, member.version, registry),
    ).find
    found = members_of(parse(text.decode(errors="replace")).spec, find, store)
    return Members(
        packages={name: each for name, each in found.items() if isinstance(each, Package)},
        unusable={name: each for name, each in found.items() if isinstance(each, Unusable)},
    )
