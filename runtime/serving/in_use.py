"""What keeps a model, or a version of it, from being retired: clients, pipelines, or the champion's package."""

from shiplift.runtime.base.errors import StillInUse
from shiplift.runtime.records.baking import Baking
from shiplift.runtime.records.request import Request
from shiplift.runtime.records.retirement import Dependent, Traffic
from shiplift.runtime.records.site import Site
from shiplift.runtime.store.ledger import Ledger
from shiplift.runtime.store.registry.client import Registry


def require_unused(model: str, served: int, traffic: Traffic, dependents: tuple[Dependent, ...]) -> None:
    """Refuses to retire a model that clients or pipelines use.

    Raises:
        StillInUse: it says who.
    """
    uses = [each for each in (traffic.sentence, *(dependent.sentence for dependent in dependents)) if each]
    if uses:
        raise StillInUse(
            f"version {served} of {model!r} is in use: {'; '.join(uses)}",
            do=f"Move its clients and dependents first, or retire it all the same: `shiplift retire {model} --force`.",
        )


def require_not_awaited(baking: Baking, version: int, served: int) -> None:
    """Refuses a version that stays ready because another one bakes.

    Raises:
        StillInUse: it does.
    """
    if baking.active and baking.version == served and baking.previous == version:
        raise StillInUse(
            f"version {version} of {baking.model!r} stays ready: version {served} is {baking.sentence}",
            do="Wait until that is over, or retire it all the same with `--force`.",
        )


def require_not_beside(site: Site, registry: Registry, model: str, version: int, served: int) -> None:
    """Refuses a version that the champion's package serves, too: a package never changes.

    Raises:
        StillInUse: it does.
        Temporary: the registry does not respond.
    """
    champion = Ledger(site, Request(model=model, version=served), registry=registry) if served else None
    promotion = champion.recorded_promotion() if champion else None
    if promotion and version in promotion.package.versions:
        raise StillInUse(
            f"version {version} of {model!r} is served beside version {served}, as `serving.version_policy` asks",
            do="Release a version with another `serving.version_policy` first.",
        )
