"""Undoes a promotion that a person aborted: all traffic goes back to what served before."""

from collections.abc import Mapping
from typing import Any

from shiplift.runtime.records.promotion import Abort, Champion, Promotion
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.records.site import Site
from shiplift.runtime.serving.champion import point, point_at_judged, promoted
from shiplift.runtime.serving.production import Production, production
from shiplift.runtime.spec.serving_settings import Rollout
from shiplift.runtime.store.ledger import Ledger
from shiplift.runtime.store.registry.client import Registry
from shiplift.runtime.store.registry.terms import CHAMPION, PREVIOUS


def halt_promotion(order: Abort, arguments: Mapping[str, Any]) -> bool:
    """Orders that a promotion gives its traffic back; `arguments` are those of its step, by name.

    Returns whether its step then has to run: to give the traffic back, or to finish if it was committed.

    Raises:
        Temporary: production does not respond.
    """
    site, request, trigger = (arguments[kind.parameter()] for kind in (Site, Request, Trigger))
    known = production(site).abort(request.model, order)
    return known is not None and known.is_of(request.version, trigger.requested_at)


def give_back(site: Site, place: Production, ledger: Ledger, promotion: Promotion, champion: Champion) -> None:
    """Gives all traffic back to what served before a promotion, in one step; idempotent.

    If nothing did, the model is served no longer. The caller holds the model's promotion lock.

    Raises:
        GoldenMismatch, ServerFailed: production can't serve the champion any more.
        Temporary: the registry or production does not respond.
    """
    former = _former(site, ledger, promotion, champion)
    if former is None:
        place.withdraw(promotion.model)
    elif not place.serves(former.package, former.others):
        at_once = Rollout(replicas=former.replicas, canary_percent=())
        place.move(former.package, at_once, former.capacity, former.others)
    _point_back(site, ledger.registry, promotion, former)
    recorded = ledger.promotion()
    if recorded and recorded.unfinished:
        own = former if former and former.version == promotion.version else None
        ledger.put_promotion(own or recorded.replaced)
    place.retire(promotion.model)


def _point_back(site: Site, registry: Registry, promotion: Promotion, former: Promotion | None) -> None:
    """Moves back the aliases that a killed promotion moved to what it had given the traffic to."""
    model = promotion.model
    if registry.alias(model, CHAMPION) == promotion.version:
        point(registry, model, CHAMPION, former.version if former else 0)
    point_at_judged(site, registry, model, PREVIOUS, former.previous if former else 0)


def _former(site: Site, ledger: Ledger, promotion: Promotion, champion: Champion) -> Promotion | None:
    """The promotion of what served before; None if nothing did."""
    own = champion.own
    if own is None or own == promotion.package:
        return promoted(site, promotion.model, promotion.previous, ledger.registry)
    recorded = ledger.promotion()  # the version is the champion, and was to be served from another package
    if recorded and recorded.finished:
        return recorded.finished
    return promotion.model_copy(update={"package": own, "capacity": None, "others": (), "unfinished": ""})
