"""Which version a challenger is compared with: a question to the registry as it is now, so never a cached answer."""

from shiplift.runtime.records.request import Request
from shiplift.runtime.records.serving import Champion
from shiplift.runtime.records.site import Site
from shiplift.runtime.store.ledger import Ledger
from shiplift.runtime.store.registry import CHAMPION, PREVIOUS, Registry


def find_champion(site: Site, request: Request) -> Champion:
    """The champion with what it was promoted with; version 0: there is none.

    A version that is the champion itself is compared with the one before it, as it was when it was promoted: so
    rerunning it changes nothing.

    Raises:
        Temporary: the registry does not answer.
    """
    registry = Registry(site.registry_uri)
    version = registry.alias(request.model, CHAMPION)
    if version == request.version:
        version = registry.alias(request.model, PREVIOUS)
    if version in (0, request.version):
        return Champion()
    promoted = Ledger(site, Request(model=request.model, version=version), registry=registry).promotion()
    return Champion(version=version, package=promoted.package if promoted else None)
