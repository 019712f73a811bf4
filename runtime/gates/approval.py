"""Whether a version that passed every gate may be promoted, if its spec asks for a person's approval."""

from collections.abc import Collection
from dataclasses import dataclass

from shiplift.runtime.base.errors import AwaitingApproval, Rejected, ShipliftError
from shiplift.runtime.records.decision import Approval, Decision
from shiplift.runtime.records.request import Request


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What to record about an approval, and the error that ends the release; None: it is promoted."""

    approval: Approval
    error: ShipliftError | None = None


def decide(
    request: Request,
    *,
    asked: Approval,
    known: Approval | None,
    decision: Decision | None,
    approvers: Collection[str],
) -> Answer:
    """Decides from what is asked for now (`asked.since`: now), what was recorded, and a person's decision, if any.

    A decision counts once, for the bytes and the champion that were waiting, before their deadline. An approval stays
    valid for them; a rejection ends the release, and another one waits again.
    """
    name, now = f"{request.model}/{request.version}", asked.since
    same = known if known and known.is_about(asked) else None
    made = same.decision if same else None
    if same and made and made.approved:
        return Answer(approval=same)
    if decision is None:
        waiting = same if same and made is None and now <= same.until else asked
        return Answer(approval=waiting, error=_waiting(name, waiting))
    if made:
        return Answer(approval=same or asked, error=_rejected(name, made))
    if why := _not_counted(same, decision, approvers, now):
        waiting = same if same and now <= same.until else asked
        return Answer(approval=waiting, error=_waiting(name, waiting, why))
    decided = asked.model_copy(update={**_dates(same, asked), "decision": decision})
    return Answer(approval=decided, error=None if decision.approved else _rejected(name, decision))


def _dates(same: Approval | None, asked: Approval) -> dict[str, float]:
    waited = same or asked
    return {"since": waited.since, "until": waited.until}


def _not_counted(same: Approval | None, decision: Decision, approvers: Collection[str], now: float) -> str:
    """Why a decision does not count; empty if it does."""
    if not allowed(decision.by, approvers):
        return f"{decision.by} may not decide, only {', '.join(approvers)} (`policy.approvers`)"
    if same is None:
        return f"it was {decision.sentence}, but its files, its package or the champion have changed since"
    return f"it was {decision.sentence}, but after the deadline, {same.deadline}" if now > same.until else ""


def allowed(name: str, approvers: Collection[str]) -> bool:
    """Whether a site's policy lets a person decide; without a list, everybody may."""
    return not approvers or name in approvers


def _waiting(name: str, approval: Approval, why: str = "") -> AwaitingApproval:
    champion = f"version {approval.champion}" if approval.champion else "no version"
    what = f"every check passed; it waits until {approval.deadline} for a person's approval to replace {champion}"
    do = f"`shiplift approve {name} --reason WHY` promotes it, `shiplift reject {name} --reason WHY` ends it."
    return AwaitingApproval(f"{why}. Again, {what}" if why else what, do=do)


def _rejected(name: str, decision: Decision) -> Rejected:
    return Rejected(decision.sentence, do=f"`shiplift rerun {name}` asks again.")
