"""Makes the previous champion serve again, from the package it was promoted with: for a person, or after an alarm."""

from contextlib import suppress

from shiplift.runtime.base.errors import NothingToRollBack, ShipliftError
from shiplift.runtime.base.progress import progress
from shiplift.runtime.records.baking import Baking
from shiplift.runtime.records.promotion import Promotion
from shiplift.runtime.records.request import Request
from shiplift.runtime.records.site import Site
from shiplift.runtime.serving.champion import (
    ChampionState,
    champion_state,
    move_traffic,
    point,
    point_at_judged,
    promoted,
    restore_aliases,
)
from shiplift.runtime.serving.dependents import release_dependents
from shiplift.runtime.serving.production import Production, production
from shiplift.runtime.spec.serving_settings import Rollout
from shiplift.runtime.store.ledger import Ledger
from shiplift.runtime.store.registry.client import Registry
from shiplift.runtime.store.registry.terms import CHAMPION, PREVIOUS
from shiplift.runtime.store.same_version import require_unchanged


def roll_back(site: Site, model: str, failed: Baking | None = None, why: str = "") -> Promotion:
    """Swaps `champion` and `previous`, so that a second rollback undoes the first.

    Both come from the signed promotions, even if the aliases were moved by hand. If an earlier rollback was killed,
    this finishes it instead. With a bake that `failed`, only the version that baked is rolled back; if its traffic went
    back already, what is missing follows. `why` is tagged as the reason.

    Raises:
        NothingToRollBack: there is no previous champion, or the record of its promotion is gone. Or another version
            than the one that baked serves.
        VersionReplaced: the registry has other files of the previous champion than those that were judged.
        GoldenMismatch, ServerFailed, CanaryFailed: production can't serve it; the current champion keeps serving.
        Temporary: the registry or production does not respond.
    """
    registry, place = Registry(site.registry_uri), production(site)
    with place.lock(model):
        now = champion_state(site, model, registry, place)
        if now.promotion and now.unfinished == "rollback":
            require_unchanged(site, registry.version(model, now.champion), now.promotion, registry)
            return _finish(site, registry, place, now.promotion, why)
        failed = failed or _alarmed(place, now)
        why = why or (failed.verdict if failed else "")
        before = _version_before(now, failed)
        if not failed:
            restore_aliases(site, now, registry, place)
        former = promoted(site, model, before, registry)
        if former is None:
            raise _nothing(now)
        former = former.finished or former  # a killed promotion of it may have begun since it served
        require_unchanged(site, registry.version(model, former.version), former, registry)
        if apart := place.quarantine(model, former.version):
            progress(f"warning: version {former.version} served before, and {apart}")
        promotion = former.model_copy(
            update={
                "previous": failed.version if failed else now.champion,
                "endpoint": place.endpoint(model),
                "unfinished": "rollback",
            }
        )
        ledger = Ledger(site, Request(model=model, version=former.version), registry=registry)
        if not place.serves(promotion.package, promotion.others):
            # in one step: this is an emergency
            move_traffic(place, ledger, promotion, Rollout(replicas=former.replicas, canary_percent=()))
        return _finish(site, registry, place, promotion, why)


def tag_if_rolled_back(site: Site, registry: Registry, model: str, version: int) -> None:
    """Tags a version that an alarm rolled back: so soon that its release had not written its own tags before."""
    baking = production(site).baking(model)
    if baking and baking.version == version and baking.state == "rolled back":
        registry.tag(model, version, outcome="rolled back", reason=baking.verdict)


def _alarmed(place: Production, now: ChampionState) -> Baking | None:
    """The bake that an alarm has ended and that nobody has rolled back in the registry: a person's order means that."""
    baking = place.baking(now.model)
    alarmed = baking is not None and baking.state == "alarmed" and now.champion in (baking.version, baking.previous)
    return baking if alarmed else None


def _version_before(now: ChampionState, failed: Baking | None) -> int:
    """The version that serves after the rollback; 0 if there is none.

    Raises:
        NothingToRollBack: neither the version that baked serves nor the one before it.
    """
    if failed is None:
        return now.previous
    if now.champion not in (failed.version, failed.previous):
        raise NothingToRollBack(
            f"version {failed.version} of {now.model!r} does not serve any more, but version {now.champion}",
            do="See `shiplift status`.",
        )
    return failed.previous


def _finish(site: Site, registry: Registry, place: Production, promotion: Promotion, why: str) -> Promotion:
    """The steps after the traffic has moved; running them twice is harmless."""
    model, finished = promotion.model, promotion.model_copy(update={"unfinished": "", "replaced": None})
    point(registry, model, CHAMPION, promotion.version)
    point_at_judged(site, registry, model, PREVIOUS, promotion.previous)
    if registry.alias(model, PREVIOUS):
        registry.tag(model, promotion.previous, outcome="rolled back", **({"reason": why} if why else {}))
    registry.tag(model, promotion.version, outcome="promoted")
    Ledger(site, Request(model=model, version=promotion.version), registry=registry).put_promotion(finished)
    place.retire(model)
    with suppress(ShipliftError):  # the rollback is done, and a dependent pipeline can be registered by hand
        release_dependents(site, model, promotion.version, registry)
    return finished


def _nothing(now: ChampionState) -> NothingToRollBack:
    named = now.aliases[PREVIOUS]
    if not named or now.promotion:
        return NothingToRollBack(
            f"model {now.model!r} has no previous champion", do="Release another version with `shiplift release`."
        )
    return NothingToRollBack(
        f"version {named} of {now.model!r} was not promoted by this Shiplift",
        do=f"Release it with `shiplift release {now.model}/{named} --allow-older`.",
    )
