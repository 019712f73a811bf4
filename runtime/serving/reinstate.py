"""Repairs what the registry and production say about a model, after someone has changed one of them by hand."""

from shiplift.runtime.records.promotion import Reinstated
from shiplift.runtime.records.site import Site
from shiplift.runtime.serving import champion
from shiplift.runtime.serving.production import production
from shiplift.runtime.store.registry.client import Registry


def reinstate(site: Site, model: str) -> Reinstated:
    """Moves back the aliases that were moved by hand, and returns them. Idempotent.

    If production has no record of the champion, it is declared again.

    Raises:
        Temporary: the registry or production does not respond.
    """
    registry, place = Registry(site.registry_uri), production(site)
    with place.lock(model):
        now = champion.champion_state(site, model, registry, place)
        return Reinstated(moved=champion.restore_aliases(site, now, registry, place))
