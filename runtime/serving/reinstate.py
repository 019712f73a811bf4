"""Repairs what the registry and production say about a model, after someone has changed one of them by hand."""

from shiplift.runtime.base.errors import NothingToRollBack
from shiplift.runtime.records.promotion import Reinstated
from shiplift.runtime.records.site import Site
from shiplift.runtime.serving import champion
from shiplift.runtime.serving.production import Production, production
from shiplift.runtime.serving.rolling_back import roll_back
from shiplift.runtime.store.registry.client import Registry


def finish_bake(site: Site, place: Production, model: str) -> None:
    """Rolls back a version whose bake an alarm ended. Its traffic may have gone back already."""
    baking = place.baking(model)
    if baking is None or baking.state != "alarmed":
        return
    ending = {"state": "rolled back"}
    try:
        roll_back(site, model, baking, baking.verdict)
    except NothingToRollBack as error:  # another version serves by now
        ending = {"state": "ended", "reason": error.what}
    place.baked(baking.model_copy(update=ending))


def reinstate(site: Site, model: str) -> Reinstated:
    """Moves back the aliases that were moved by hand, and returns them. Idempotent.

    If production has no record of the champion, it is declared again.

    Raises:
        Temporary: the registry or production does not respond.
    """
    registry, place = Registry(site.registry_uri), production(site)
    finish_bake(site, place, model)
    with place.lock(model):
        now = champion.champion_state(site, model, registry, place)
        return Reinstated(moved=champion.restore_aliases(site, now, registry, place))
