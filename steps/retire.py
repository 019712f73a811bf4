"""Retirement: takes a model out of service, or removes what a version that no longer serves has left.

In order: check that nobody uses it; mark the signed record of every promotion as retired, that of the version that
serves first; tag the versions; remove the aliases; withdraw it from production. From the first mark on, nothing but a
new release can make it serve again. Killed at any line and run again, it goes on with the order that began.
"""

from collections.abc import Iterator

from shiplift.runtime.base.errors import NotFound, StillInUse
from shiplift.runtime.base.progress import progress
from shiplift.runtime.records.promotion import Promotion
from shiplift.runtime.records.request import Request
from shiplift.runtime.records.retirement import Dependent, Retired, Retirement, Retiring, Traffic
from shiplift.runtime.records.site import Site
from shiplift.runtime.serving.champion import point
from shiplift.runtime.serving.dependents import dependents_of
from shiplift.runtime.serving.in_use import require_not_awaited, require_not_beside, require_unused
from shiplift.runtime.serving.production import Production, production
from shiplift.runtime.store.ledger import Ledger
from shiplift.runtime.store.registry.client import Registry
from shiplift.runtime.store.registry.terms import CHALLENGER, CHAMPION, PREVIOUS, RETIRED_TAG


def retire(site: Site, model: str, retiring: Retiring) -> Retired:
    """Retires a model, or one of its versions that does not serve; what was retired before stays as it is.

    Raises:
        StillInUse: the model has traffic or dependents, and the order has no `force`; or the version serves.
        NotFound: production does not serve the model, and never did; or the version was never promoted.
        Temporary: the registry or production does not respond.
    """
    registry, place = Registry(site.registry_uri), production(site)
    with place.lock(model):
        if retiring.version:
            return _version(site, registry, place, model, retiring)
        return _model(site, registry, place, model, retiring)


def _model(site: Site, registry: Registry, place: Production, model: str, retiring: Retiring) -> Retired:
    served = place.serving(model)
    records = _records(site, registry, model, served)
    begun = _begun(records, served)
    if not served and not records:
        raise NotFound(f"production does not serve {model!r}, and never did", do="See `shiplift status`.")
    traffic, dependents = Traffic(), tuple[Dependent, ...]()
    if served and not begun:
        traffic, dependents = place.traffic(model), dependents_of(site, model, registry)
        if not retiring.force:
            require_unused(model, served, traffic, dependents)
    last = served or retiring.retirement.version  # a service that was deleted by hand serves no more
    retirement = begun or retiring.retirement.model_copy(update={"version": last})
    for ledger, promotion in records:
        if promotion.retired is None:
            ledger.put_promotion(promotion.model_copy(update={"retired": retirement}))
    _tag(registry, model, retirement)
    for alias in (CHAMPION, PREVIOUS, CHALLENGER):
        point(registry, model, alias, 0)
    progress(f"taking {model} out of service")
    place.withdraw(model)
    for _, promotion in records:
        place.drop(promotion.package)
    return Retired(
        model=model,
        served=retirement.version,
        versions=tuple(sorted(promotion.version for _, promotion in records)),
        retirement=retirement,
        before=begun is not None,
        traffic=traffic,
        dependents=dependents,
    )


def _version(site: Site, registry: Registry, place: Production, model: str, retiring: Retiring) -> Retired:
    version, served = retiring.version, place.serving(model)
    if version == served:
        raise StillInUse(
            f"version {version} of {model!r} is the champion: it serves",
            do=f"`shiplift retire {model}` takes the model out of service, `shiplift rollback {model}` makes the "
            "previous version serve.",
        )
    require_not_beside(site, registry, model, version, served)
    baking = place.baking(model)
    if baking and not retiring.force:
        require_not_awaited(baking, version, served)
    ledger = Ledger(site, Request(model=model, version=version), registry=registry)
    promotion = ledger.recorded_promotion()
    if promotion is None:
        raise NotFound(
            f"version {version} of {model!r} was never promoted, so there is nothing to retire",
            do="See `shiplift status`.",
        )
    retirement = promotion.retired or retiring.retirement.model_copy(update={"version": version})
    if promotion.retired is None:
        ledger.put_promotion(promotion.model_copy(update={"retired": retirement}))
    for alias in (PREVIOUS, CHALLENGER, CHAMPION):
        if registry.alias(model, alias) == version:
            point(registry, model, alias, 0)
    place.drop(promotion.package)
    registry.tag(model, version, outcome="retired", reason=retirement.sentence, retired=retirement.sentence)
    return Retired(
        model=model,
        version=version,
        served=0,
        versions=(version,),
        retirement=retirement,
        before=promotion.retired is not None,
    )


def _records(site: Site, registry: Registry, model: str, served: int) -> list[tuple[Ledger, Promotion]]:
    """The signed record of each version that was ever promoted, that of the serving version first."""

    def found() -> Iterator[tuple[Ledger, Promotion]]:
        for info in sorted(registry.versions(model), key=lambda info: (info.version != served, info.version)):
            ledger = Ledger(site, Request(model=model, version=info.version), registry=registry)
            if promotion := ledger.recorded_promotion():
                yield ledger, promotion

    return list(found())


def _begun(records: list[tuple[Ledger, Promotion]], served: int) -> Retirement | None:
    """The retirement that has begun or ended; None if the model serves, or another one could begin.

    The record of the version that serves is the first to be marked, and the model is withdrawn after the last one.
    """
    if served:
        return next((each.retired for _, each in records if each.version == served), None)
    known = [promotion.retired for _, promotion in records]
    return max((each for each in known if each), key=lambda each: each.at, default=None) if all(known) else None


def _tag(registry: Registry, model: str, retirement: Retirement) -> None:
    """Tells people and triggers, with each version: no repeated webhook and no sweep releases it again."""
    told = retirement.sentence
    for info in registry.versions(model):
        if info.version == retirement.version:
            registry.tag(model, info.version, outcome="retired", reason=told, retired=told)
        elif RETIRED_TAG not in info.tags:
            registry.tag(model, info.version, retired=told)
