"""A model that was retired stays retired, also for the releases that were under way."""

from contextlib import suppress

from shiplift.runtime.base.errors import NotFound, PromotionConflict
from shiplift.runtime.records.promotion import Champion
from shiplift.runtime.records.request import Request
from shiplift.runtime.records.retirement import Retirement
from shiplift.runtime.records.site import Site
from shiplift.runtime.store.ledger import Ledger
from shiplift.runtime.store.registry.client import Registry


def require_not_retired(site: Site, registry: Registry, request: Request, champion: Champion) -> None:
    """Refuses a promotion of a release that began before the model was retired: only a new release brings it back.

    Raises:
        PromotionConflict: the champion, or the version's own package that serves, was retired meanwhile.
    """
    for version in (champion.version, request.version if champion.own else 0):
        if version and (retirement := _retirement(site, registry, request.model, version)):
            raise PromotionConflict(
                f"{request.model} was {retirement.sentence}, after this release of version {request.version} had begun",
                do=f"If it should serve again, release it anew: `shiplift rerun {request.model}/{request.version}`.",
            )


def _retirement(site: Site, registry: Registry, model: str, version: int) -> Retirement | None:
    with suppress(NotFound):  # deleted since
        recorded = Ledger(site, Request(model=model, version=version), registry=registry).recorded_promotion()
        return recorded.retired if recorded else None
    return None
