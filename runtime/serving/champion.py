"""A model's champion: the version that production serves, as the signed record of its promotion says.

The registry's aliases only display it. Anyone with write access to the registry can move them, so an alias that
disagrees is drift: it is reported and moved back, and no decision depends on it.
"""

import time
from dataclasses import dataclass

from shiplift.runtime.base.errors import NotFound, ShipliftError
from shiplift.runtime.base.progress import progress
from shiplift.runtime.records.promotion import AliasDrift, Promotion
from shiplift.runtime.records.request import Request
from shiplift.runtime.records.site import Site
from shiplift.runtime.serving.production import Production
from shiplift.runtime.spec.serving_settings import Rollout
from shiplift.runtime.store.ledger import Ledger
from shiplift.runtime.store.registry.client import Registry
from shiplift.runtime.store.registry.terms import CHAMPION, PREVIOUS
from shiplift.runtime.store.same_version import is_unchanged

ADVICE = "use `shiplift release` or `shiplift rollback` to change what serves"


@dataclass(frozen=True, kw_only=True)
class ChampionState:
    """A model's champion and the version before it (0: none), and what the aliases say.

    `promotion` is the champion's; None if the registry has no genuine record of it. `serves` is false if production
    does not know the model: then its aliases are left alone.
    """

    model: str
    champion: int
    previous: int
    promotion: Promotion | None
    serves: bool
    aliases: dict[str, int]

    @property
    def drift(self) -> tuple[AliasDrift, ...]:
        """The aliases that name the wrong version.

        Without a promotion, `champion` may stay where it is, but no alias is moved to what production serves: in the
        registry, its number may be another version's by now.
        """
        if not self.serves:
            return ()
        named = self.aliases[CHAMPION]
        right = {CHAMPION: self.champion if self.promotion or named == self.champion else 0}
        right |= {PREVIOUS: self.previous} if self.promotion else {}
        return tuple(
            AliasDrift(model=self.model, alias=alias, named=self.aliases[alias], version=version)
            for alias, version in right.items()
            if self.aliases[alias] != version
        )

    @property
    def unfinished(self) -> str:
        """The promotion or rollback that has begun and not ended; empty if there is none."""
        return self.promotion.unfinished if self.promotion else ""


def champion_state(site: Site, model: str, registry: Registry, place: Production) -> ChampionState:
    """The current state of a model.

    Raises:
        Temporary: the registry or production does not respond.
    """
    aliases = {alias: registry.alias(model, alias) for alias in (CHAMPION, PREVIOUS)}
    served = place.serving(model)
    version = served or aliases[CHAMPION]  # if production lost its state, a release still needs a champion to beat
    promotion = promoted(site, model, version, registry)
    champion = version if served or promotion else 0
    previous = promotion.previous if promotion else aliases[PREVIOUS]
    if previous == champion or promoted(site, model, previous, registry) is None:
        previous = 0
    return ChampionState(
        model=model, champion=champion, previous=previous, promotion=promotion, serves=bool(served), aliases=aliases
    )


def promoted(site: Site, model: str, version: int, registry: Registry) -> Promotion | None:
    """The genuine record of a version's promotion; None if the version or its record does not exist.

    A version that got the number of a deleted one has no record until it is promoted itself.
    """
    if not version:
        return None
    try:
        return Ledger(site, Request(model=model, version=version), registry=registry).promotion()
    except NotFound:
        return None


def restore_aliases(site: Site, now: ChampionState, registry: Registry, place: Production) -> tuple[AliasDrift, ...]:
    """Moves back the aliases that were moved by hand, and returns them; the caller holds the model's promotion lock.

    If production has no record of the champion, as after a new installation, it is declared again. The version that an
    alias named gets a tag that says why the alias has moved. An alias is removed if the version that it should name was
    deleted, or has other files than those that were judged.
    """
    last = now.promotion
    if last and not now.unfinished and place.declare(last.package, last.replicas, last.capacity, last.others):
        progress(f"production had no record of the model: version {now.champion} was declared again")
    moved = []
    for drift in now.drift:
        changed = point_at_judged(site, registry, now.model, drift.alias, drift.version)
        if changed and not now.unfinished:
            _explain(registry, drift)
            moved.append(drift)
    return tuple(moved)


def point(registry: Registry, model: str, alias: str, version: int) -> bool:
    """Points an alias at a version, or removes it if that version was deleted; returns whether the alias changed."""
    before = registry.alias(model, alias)
    try:
        registry.move_alias(model, alias, version)
    except NotFound:
        registry.move_alias(model, alias, 0)
        return before != 0
    return before != version


def point_at_judged(site: Site, registry: Registry, model: str, alias: str, version: int) -> bool:
    """Like `point`, but removes the alias too if the version is not the one that was promoted under this number."""
    promotion = promoted(site, model, version, registry)
    if promotion is None or not is_unchanged(site, registry.version(model, version), promotion, registry):
        version = 0
    return point(registry, model, alias, version)


def move_traffic(
    place: Production, ledger: Ledger, promotion: Promotion, rollout: Rollout, requested_at: float | None = None
) -> None:
    """Moves the traffic to a promotion's packages; with `requested_at`, a person can abort it, as in `place.move`.

    The record is written first, so that production never serves a version without a record of its promotion. It keeps
    the version's finished promotion, which is put back if this one fails or is aborted.

    Raises:
        Aborted: a person ended it.
        GoldenMismatch, ServerFailed, CanaryFailed: production can't serve it; the previous version still serves.
    """
    recorded = ledger.recorded_promotion()
    former = recorded.finished if recorded else None
    ledger.put_promotion(promotion.model_copy(update={"replaced": former}))
    try:
        place.move(promotion.package, rollout, promotion.capacity, promotion.others, requested_at)
    except ShipliftError:
        ledger.put_promotion(former)
        raise


def _explain(registry: Registry, drift: AliasDrift) -> None:
    progress(f"{drift.sentence}: moved back")
    at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    try:
        registry.tag(drift.model, drift.named or drift.version, drift=f"{at}: {drift.sentence}. Moved back; {ADVICE}.")
    except NotFound:
        return
