"""The bake of a promotion: what is watched afterwards, and what serves again after an alarm."""

from shiplift.runtime.base.progress import progress
from shiplift.runtime.records.baking import Baking
from shiplift.runtime.records.promotion import Promotion
from shiplift.runtime.records.request import Trigger
from shiplift.runtime.records.site import Site
from shiplift.runtime.serving.champion import promoted
from shiplift.runtime.serving.production import Production
from shiplift.runtime.spec.groups import Delivery
from shiplift.runtime.store.registry.client import Registry


def bake_of(
    site: Site, registry: Registry, promotion: Promotion, trigger: Trigger, delivery: Delivery
) -> Baking | None:
    """The bake that the spec asks for; None if it asks for none, or if no version served before."""
    wanted = delivery.promoting.bake
    former = promoted(site, promotion.model, promotion.previous, registry) if wanted else None
    if wanted is None or former is None:
        if wanted:
            progress("there is no bake: no other version served before, so there is nothing to go back to")
        return None
    return Baking(
        model=promotion.model,
        version=promotion.version,
        package=promotion.package.repository.sha256,
        requested_at=trigger.requested_at,
        previous=former.version,
        for_s=wanted.for_s,
        silence_s=wanted.silence_s,
        confidence=wanted.confidence_percent / 100,
        alarms=wanted.rules(delivery.p99_ms),
        former=former.finished or former,
    )


def begin_bake(
    site: Site, registry: Registry, place: Production, promotion: Promotion, trigger: Trigger, delivery: Delivery
) -> None:
    """Begins to watch a version that has all traffic, if its spec asks for that; idempotent.

    This comes before the commit, after which the place need not keep the version before.
    """
    if baking := bake_of(site, registry, promotion, trigger, delivery):
        place.bake(baking)
