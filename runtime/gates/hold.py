"""Holds a promotion until a person agrees, and records what waits and what was decided, in the ledger and as a tag."""

import time

from shiplift.runtime.gates.approval import decide
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

    Raises:
        AwaitingApproval, Rejected: it has not been approved yet, or it was rejected.
        Temporary: the registry does not respond.
    """
    known = ledger.approval()
    answer = decide(request, asked=asked, known=known, decision=trigger.decision, approvers=site.policy.approvers)
    if answer.approval != known:
        ledger.put_approval(answer.approval)
        decision = answer.approval.decision
        told = decision.sentence if decision else f"waiting until {answer.approval.deadline}"
        ledger.registry.tag(request.model, request.version, approval=told)
    if answer.error:
        raise answer.error
