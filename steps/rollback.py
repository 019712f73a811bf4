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
    """Makes `previous` the champion again, and the champion `previous`: a second rollback undoes the first.

    Raises:
        NothingToRollBack: there is no previous champion, or what it was promoted with is gone.
        GoldenMismatch, ServerFailed, CanaryFailed: production can't serve it; what served before still does.
        Temporary: the registry or production does not answer.
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
        kept = ledger.promotion()
        if kept is None:
            raise NothingToRollBack(
                f"version {previous} of {model!r} was not promoted by this Shiplift",
                do=f"Release it with `shiplift release {model}/{previous} --allow-older`.",
            )
        place.move(kept.package, Rollout(replicas=kept.replicas, canary_percent=()))  # at once: it is an emergency
        promotion = kept.model_copy(update={"previous": champion, "endpoint": place.endpoint(model)})
        ledger.put_promotion(promotion)
        registry.move_alias(model, CHAMPION, previous, expected=champion)
        registry.move_alias(model, PREVIOUS, champion)
        place.retire(model)
        if champion:
            registry.tag(model, champion, outcome="rolled back")
        registry.tag(model, previous, outcome="promoted")
    return promotion


def _finished(site: Site, registry: Registry, model: str, champion: int) -> Promotion:
    """A rollback killed between the two aliases: what `previous` must become is kept with the promotion."""
    kept = Ledger(site, Request(model=model, version=champion), registry=registry).promotion()
    if kept is None:
        raise NothingToRollBack(
            f"`champion` and `previous` of {model!r} both name version {champion}, which Shiplift did not promote",
            do="Release another version with `shiplift release`.",
        )
    registry.move_alias(model, PREVIOUS, kept.previous)
    return kept
