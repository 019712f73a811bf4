"""Whether a version that passed every gate may be promoted, if its spec asks for a person's approval."""

from dataclasses import dataclass

from shiplift.runtime.base.errors import AwaitingApproval, Rejected, ShipliftError
from shiplift.runtime.records.decision import Approval, Decision
from shiplift.runtime.records.request import Request
from shiplift.runtime.records.site import SitePolicy


@dataclass(frozen=True, kw_only=True)
class ApprovalOutcome:
    """What to record about an approval, and the error that ends the release; None: it is promoted."""

    approval: Approval
    error: ShipliftError | None = None


def decide(
    request: Request,
    *,
    asked: Approval,
    known: Approval | None,
    decision: Decision | None,
    policy: SitePolicy,
) -> ApprovalOutcome:
    """Decides from what is asked for now (`asked.since`: now), what was recorded, and a person's decision, if any.

    A decision counts once, for the bytes and the champion that were waiting, before their deadline. An approval stays
    valid for them; a rejection ends the release, and another one waits again.
    """
    name, now = f"{request.model}/{request.version}", asked.since
    same = known if known and known.is_about(asked) else None
    made = same.decision if same else None
    if same and made and made.approved:
        return ApprovalOutcome(approval=same)
    if decision is None:
        waiting = same if same and made is None and now <= same.until else asked
        return ApprovalOutcome(approval=waiting, error=_waiting(name, waiting))
    if made:
        return ApprovalOutcome(approval=same or asked, error=_rejected(name, made))
    if why := _not_counted(same, decision, policy, now):
        waiting = same if same and now <= same.until else asked
        return ApprovalOutcome(approval=waiting, error=_waiting(name, waiting, why))
    decided = asked.model_copy(update={**_dates(same, asked), "decision": decision})
    return ApprovalOutcome(approval=decided, error=None if decision.approved else _rejected(name, decision))


def _dates(same: Approval | None, asked: Approval) -> dict[str, float]:
    waited = same or asked
    return {"since": waited.since, "until": waited.until}


def _not_counted(same: Approval | None, decision: Decision, policy: SitePolicy, now: float) -> str:
    """Why a decision does not count; empty if it does."""
    if decision.via and not policy.approvals.trusts(decision.via):
        return f"it was {decision.sentence}, but none in the registry may decide (`policy.approvals`)"
    if not allowed(decision.by, policy):
        return f"{decision.by} may not decide, only {', '.join(policy.approvers)} (`policy.approvers`)"
    if same is None:
        return f"it was {decision.sentence}, but its files, its package or the champion have changed since"
    return f"it was {decision.sentence}, but after the deadline, {same.deadline}" if now > same.until else ""


def allowed(name: str, policy: SitePolicy) -> bool:
    """Whether a site's policy lets a person decide; without a list, everybody may."""
    return not policy.approvers or name in policy.approvers


def _waiting(name: str, approval: Approval, why: str = "") -> AwaitingApproval:
    champion = f"version {approval.champion}" if approval.champion else "no version"
    what = f"every check passed; it waits until {approval.deadline} for a person's approval to replace {champion}"
    do = f"`shiplift approve {name} --reason WHY` promotes it, `shiplift reject {name} --reason WHY` ends it."
    return AwaitingApproval(f"{why}. Again, {what}" if why else what, do=do)


def _rejected(name: str, decision: Decision) -> Rejected:
    return Rejected(decision.sentence, do=f"`shiplift rerun {name}` asks again.")
