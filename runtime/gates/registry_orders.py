"""What people decide about a waiting version in the registry itself: by a tag or an alias of the version.

MLflow's registry keeps neither who set one nor when. So none counts unless the site's owner trusts whoever may set it
(`policy.approvals`). Whoever waits removes what is there when the wait begins, so what is found later was set since
then, about these bytes and this champion. Approval and rejection are two tags, since the later one would replace the
earlier one under one name: of two people who decide at once, the one who rejects is heard.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shiplift.runtime.base.text import printable
from shiplift.runtime.gates.approval import allowed
from shiplift.runtime.records.decision import Decision
from shiplift.runtime.records.site import SitePolicy
from shiplift.runtime.store.registry.terms import APPROVE_TAG, REJECT_TAG, VersionInfo

if TYPE_CHECKING:
    from shiplift.runtime.store.registry.client import Registry

_NAME, _REASON = 80, 1000  # characters, as they come from others


@dataclass(frozen=True, kw_only=True)
class RegistryDecision:
    """The decision that the registry has about a version, if any, and why another one does not count."""

    decision: Decision | None = None
    ignored: str = ""


def noted(info: VersionInfo, policy: SitePolicy, now: float) -> RegistryDecision:
    """What the registry says about a version that waits; a rejection wins. `now` is in seconds since the epoch."""
    ignored: list[str] = []
    for key, approved in ((REJECT_TAG, False), (APPROVE_TAG, True)):
        text = info.tags.get(key)
        if text is None or not policy.approvals.trusts("tag"):
            continue
        name, _, reason = text.partition(":") if policy.approvers else ("", "", text)
        by = printable(name.strip(), limit=_NAME)
        if allowed(by, policy):
            why = printable(reason.strip(), limit=_REASON)
            return RegistryDecision(decision=Decision(approved=approved, by=by, reason=why, at=now, via="tag"))
        who = f"{by} may not decide" if by else "it names nobody"
        ignored.append(f"the tag {key} does not count: {who}, only {', '.join(policy.approvers)} (`NAME: REASON`)")
    alias = policy.approvals.alias
    if alias and alias in info.aliases:
        return RegistryDecision(decision=Decision(approved=True, by="", reason=alias, at=now, via="alias"))
    return RegistryDecision(ignored="; ".join(ignored))


def take_away(registry: "Registry", info: VersionInfo, policy: SitePolicy) -> None:
    """Removes the tags and the alias that `info` has: they were about something else, or have been heard.

    Raises:
        Temporary: the registry does not respond.
    """
    for key in (APPROVE_TAG, REJECT_TAG):
        if key in info.tags and policy.approvals.trusts("tag"):
            registry.untag(info.name, info.version, key)
    alias = policy.approvals.alias
    if alias and registry.alias(info.name, alias) == info.version:
        registry.move_alias(info.name, alias, 0)
