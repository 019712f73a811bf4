"""Finds the version that a challenger is compared with: asks the registry as it is now, so is never cached."""

from shiplift.runtime.records.request import Request
from shiplift.runtime.records.serving import Champion
from shiplift.runtime.records.site import Site
from shiplift.runtime.store.ledger import Ledger
from shiplift.runtime.store.registry import CHAMPION, PREVIOUS, Registry


def find_champion(site: Site, request: Request) -> Champion:
    """The champion and the package it was promoted with; version 0 if there is none.

    A version that is itself the champion is compared with the previous one, as when it was promoted, so that a rerun
    changes nothing.

    Raises:
        Temporary: the registry does not respond.
    """
    registry = Registry(site.registry_uri)
    version = registry.alias(request.model, CHAMPION)
    if version == request.version:
        version = registry.alias(request.model, PREVIOUS)
    if version in (0, request.version):
        return Champion()
    promotion = Ledger(site, Request(model=request.model, version=version), registry=registry).promotion()
    return Champion(version=version, package=promotion.package if promotion else None)
