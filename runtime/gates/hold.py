"""Holds a promotion until a person agrees, and records what waits and what was decided, in the ledger and as a tag."""

import time

from shiplift.runtime.gates.approval import decide
from shiplift.runtime.gates.registry_orders import noted, take_away
from shiplift.runtime.records.decision import Approval
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.model import ModelVersion
from shiplift.runtime.records.promotion import Champion
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.records.site import Site
from shiplift.runtime.spec.promoting import Promoting
from shiplift.runtime.store.ledger import Ledger


def approval_asked(
    request: Request, version: ModelVersion, package: Package, champion: Champion, promoting: Promoting
) -> Approval:
    """What a person has to approve from now on: these bytes, in the place of this champion."""
    now = time.time()
    return Approval(
        spec=request.spec,
        digest=version.digest,
        package=package.repository.sha256,
        champion=champion.version,
        since=now,
        until=now + promoting.deadline_h * 3600,
    )


def require_approval(site: Site, request: Request, trigger: Trigger, ledger: Ledger, asked: Approval) -> None:
    """Records what waits for approval, or what a person decided.

    A rejection in the registry wins over the approval with which the release was started. What was set there before the
    wait begins is removed before that is recorded, and what was heard after: a process killed in between loses neither.

    Raises:
        AwaitingApproval, Rejected: it has not been approved yet, or it was rejected.
        Temporary: the registry does not respond.
    """
    registry, policy = ledger.registry, site.policy
    info = registry.version(request.model, request.version) if policy.approvals.any else None
    known, decision = ledger.approval(), trigger.decision
    if info and decision and (found := noted(info, policy, asked.since).decision) and not found.approved:
        decision = found
    answer = decide(request, asked=asked, known=known, decision=decision, policy=policy)
    made, changed = answer.approval.decision, answer.approval != known
    if info and made is None and (changed or decision):
        take_away(registry, info, policy)
    if changed:
        told = made.sentence if made else f"waiting until {answer.approval.deadline}"
        registry.tag(request.model, request.version, approval=told)
        ledger.put_approval(answer.approval)  # last: a process killed before it tells again
    if info and made and decision:
        take_away(registry, info, policy)
    if answer.error:
        raise answer.error
