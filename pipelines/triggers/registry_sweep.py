"""What a lost webhook missed, found by looking: MLflow keeps no outbox, so a sweep of the registry is part of the
trigger, on either engine.
"""

import time
from collections.abc import Callable, Iterator
from typing import Protocol

from shiplift.pipelines.engines.answers import Accepted
from shiplift.runtime.base.errors import ShipliftError, Temporary
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.store.registry import TAG, VersionInfo


class Newest(Protocol):
    """A registry that can be swept."""

    def newest(self) -> Iterator[VersionInfo]:
        """Each model's version with the highest number."""
        ...


def sweep(
    registry: Newest,
    accept: Callable[[Request, Trigger], Accepted],
    *,
    since: float,
    tell: Callable[[str], object],
) -> list[Accepted]:
    """Accepts each model's newest version if it has no release and was registered after `since`; gives the new ones.

    Raises:
        Temporary: the registry, or what accepts, does not answer; what was accepted by then stays accepted.
    """
    found: list[Accepted] = []
    for info in registry.newest():
        if info.created_at < since or f"{TAG}release" in info.tags:
            continue
        trigger = Trigger(kind="sweep", requested_at=time.time())
        try:
            accepted = accept(Request(model=info.name, version=info.version), trigger)
        except Temporary:
            raise
        except ShipliftError as error:  # one model's trouble is not the others'
            tell(f"{info.name!r} version {info.version} can't be released: {error}")
            continue
        if accepted.created:
            tell(f"the sweep found {info.name!r} version {info.version}: {accepted.name}")
            found.append(accepted)
    return found
