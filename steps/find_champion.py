"""Finds the version that a challenger is compared with: asks production and the registry now, so is never cached."""

from shiplift.runtime.base.errors import PromotionConflict
from shiplift.runtime.base.progress import progress
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.records.serving import Champion
from shiplift.runtime.records.site import Site
from shiplift.runtime.serving.production import production
from shiplift.runtime.serving.standing import promoted, standing
from shiplift.runtime.store.registry.client import Registry


def find_champion(site: Site, request: Request, trigger: Trigger) -> Champion:
    """The champion and the package it was promoted with; version 0 if there is none.

    It is what production serves, wherever the registry's aliases were moved. A version that is itself the champion is
    compared with the previous one, as when it was promoted, so that a rerun changes nothing.

    Raises:
        PromotionConflict: the registry has no genuine record of the champion's promotion, so nothing can be compared.
        Temporary: the registry or production does not respond.
    """
    registry = Registry(site.registry_uri)
    now = standing(site, request.model, registry, production(site))
    for drift in () if now.unfinished else now.drift:
        progress(drift.sentence)
    version, promotion = now.champion, now.promotion
    if version == request.version:
        version, promotion = now.previous, promoted(site, request.model, now.previous, registry)
    if version in (0, request.version):
        return Champion()
    if promotion is None and not trigger.allow_older:
        raise PromotionConflict(
            f"production serves version {version} of {request.model!r}, but the registry has no genuine record of its "
            "promotion: the version was deleted, or the record altered",
            do=f"Run `shiplift rollback {request.model}`, or release without a comparison: `shiplift release "
            f"{request.model}/{request.version} --allow-older`.",
        )
    return Champion(version=version, package=promotion.package if promotion else None)
