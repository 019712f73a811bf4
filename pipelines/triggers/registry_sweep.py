"""Finds versions whose webhook was lost, on either engine: MLflow keeps no outbox, so the registry has to be swept."""

import time
from collections.abc import Callable, Iterator
from typing import Protocol

from shiplift.pipelines.engines.answers import Accepted
from shiplift.runtime.base.errors import ShipliftError, Temporary
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.store.registry.terms import RETIRED_TAG, TAG, VersionInfo, request_of


class SweepableRegistry(Protocol):
    """The part of a registry that a sweep needs."""

    def newest(self) -> Iterator[VersionInfo]:
        """Each model's version with the highest number."""
        ...


def sweep(
    registry: SweepableRegistry,
    accept: Callable[[Request, Trigger], Accepted],
    *,
    since: float,
    tell: Callable[[str], object],
) -> list[Accepted]:
    """Accepts each model's newest version if it has no release and was registered after `since`; returns new releases.

    Raises:
        Temporary: the registry or the engine does not respond; releases accepted so far stay accepted.
    """
    new: list[Accepted] = []
    for info in registry.newest():
        if info.created_at < since or f"{TAG}release" in info.tags or RETIRED_TAG in info.tags:
            continue
        trigger = Trigger(kind="sweep", requested_at=time.time())
        try:
            accepted = accept(request_of(info), trigger)
        except Temporary:
            raise
        except ShipliftError as error:  # one model's error must not stop the others
            tell(f"{info.name!r} version {info.version} can't be released: {error}")
            continue
        if accepted.created:
            tell(f"the sweep found {info.name!r} version {info.version}: {accepted.name}")
            new.append(accepted)
    return new
