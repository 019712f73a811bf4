"""Rollback: a promotion of the previous champion, from the package it was promoted with."""

from shiplift.runtime.base.errors import NothingToRollBack
from shiplift.runtime.records.request import Request
from shiplift.runtime.records.serving import Promotion
from shiplift.runtime.records.site import Site
from shiplift.runtime.serving.production import production
from shiplift.runtime.spec.serving import Rollout
from shiplift.runtime.store.ledger import Ledger
from shiplift.runtime.store.registry import CHAMPION, PREVIOUS, Registry


def rollback(site: Site, model: str) -> Promotion:
    """Swaps `champion` and `previous`, so that a second rollback undoes the first.

    Raises:
        NothingToRollBack: there is no previous champion, or the record of its promotion is gone.
        GoldenMismatch, ServerFailed, CanaryFailed: production can't serve it; the current champion keeps serving.
        Temporary: the registry or production does not respond.
    """
    registry, place = Registry(site.registry_uri), production(site)
    with place.lock(model):
        champion, previous = registry.alias(model, CHAMPION), registry.alias(model, PREVIOUS)
        if champion and previous == champion:
            return _finished(site, registry, model, champion)
        if not previous:
            raise NothingToRollBack(
                f"model {model!r} has no previous champion", do="Release another version with `shiplift release`."
            )
        ledger = Ledger(site, Request(model=model, version=previous), registry=registry)
        former = ledger.promotion()
        if former is None:
            raise NothingToRollBack(
                f"version {previous} of {model!r} was not promoted by this Shiplift",
                do=f"Release it with `shiplift release {model}/{previous} --allow-older`.",
            )
        place.move(
            former.package, Rollout(replicas=former.replicas, canary_percent=())
        )  # in one step: this is an emergency
        promotion = former.model_copy(update={"previous": champion, "endpoint": place.endpoint(model)})
        ledger.put_promotion(promotion)
        registry.move_alias(model, CHAMPION, previous, expected=champion)
        registry.move_alias(model, PREVIOUS, champion)
        place.retire(model)
        if champion:
            registry.tag(model, champion, outcome="rolled back")
        registry.tag(model, previous, outcome="promoted")
    return promotion


def _finished(site: Site, registry: Registry, model: str, champion: int) -> Promotion:
    """Finishes a rollback killed between moving the two aliases; the promotion says what `previous` must be."""
    promotion = Ledger(site, Request(model=model, version=champion), registry=registry).promotion()
    if promotion is None:
        raise NothingToRollBack(
            f"`champion` and `previous` of {model!r} both name version {champion}, which Shiplift did not promote",
            do="Release another version with `shiplift release`.",
        )
    registry.move_alias(model, PREVIOUS, promotion.previous)
    return promotion
