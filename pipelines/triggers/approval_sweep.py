"""Finds what people decided in the registry about versions that wait for approval, on either engine.

MLflow has webhooks for tags and aliases, too. They name nobody either, can be lost, and would tell of each tag that a
release sets; a look at the few versions that wait needs none of them.
"""

import time
from collections.abc import Callable
from typing import Protocol

from shiplift.pipelines.engines.answers import Accepted
from shiplift.runtime.base.errors import AlreadyDecided, NothingToDecide, ShipliftError, Temporary
from shiplift.runtime.gates.registry_orders import noted
from shiplift.runtime.records.decision import Decision
from shiplift.runtime.records.site import SitePolicy
from shiplift.runtime.store.registry.terms import TAG, VersionInfo

_WAITING = "waiting for approval"


class WaitingRegistry(Protocol):
    """The part of a registry that the sweep needs."""

    def tagged(self, tag: str, value: str = "") -> list[VersionInfo]:
        """Every version whose tag has this value."""
        ...

    def version(self, name: str, version: int) -> VersionInfo | None:
        """A version as it is now; None if it does not exist."""
        ...

    def tag(self, name: str, version: int, **tags: str) -> None:
        """Sets `shiplift.KEY` tags."""
        ...


def sweep(
    registry: WaitingRegistry,
    decide: Callable[[VersionInfo, Decision], Accepted],
    policy: SitePolicy,
    *,
    tell: Callable[[str], object],
) -> None:
    """Continues the release of each version about which the registry has a decision that the site's policy trusts.

    One that does not count is named in the version's tag `shiplift.approval`.

    Raises:
        Temporary: the registry or the engine does not respond; the next sweep finds the rest.
    """
    if not policy.approvals.any:
        return
    for listed in registry.tagged(f"{TAG}outcome", _WAITING):
        info = registry.version(listed.name, listed.version)  # a list has no aliases
        if info is None:
            continue
        found = noted(info, policy, time.time())
        if found.decision:
            _follow(info, found.decision, decide, tell)
        elif found.ignored and info.tags.get(f"{TAG}approval") != found.ignored:
            registry.tag(info.name, info.version, approval=found.ignored)
            tell(f"{info.name!r} version {info.version} still waits for approval: {found.ignored}")


def _follow(
    info: VersionInfo,
    decision: Decision,
    decide: Callable[[VersionInfo, Decision], Accepted],
    tell: Callable[[str], object],
) -> None:
    try:
        accepted = decide(info, decision)
    except (NothingToDecide, AlreadyDecided):  # its release is under way, and hears of a rejection by itself
        return
    except Temporary:
        raise
    except ShipliftError as error:  # one version's error must not stop the others
        tell(f"{info.name!r} version {info.version} can't be decided about: {error}")
        return
    tell(f"{info.name!r} version {info.version} was {decision.sentence}: {accepted.name}")
