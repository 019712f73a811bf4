"""Who may promote a version that waits, and when: one decision counts, for the same bytes and the same champion."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shiplift.runtime.base.errors import AwaitingApproval, Rejected
from shiplift.runtime.gates.approval import ApprovalOutcome, decide
from shiplift.runtime.records.decision import Approval, Decision
from shiplift.runtime.records.request import Request
from shiplift.runtime.records.site import SitePolicy

REQUEST, HOURS = Request(model="digits", version=4), 3600.0
YES, NO = Decision(approved=True, by="ana", reason="checked"), Decision(approved=False, by="bob")


@dataclass
class Registry:
    """What is recorded about a version, and what its releases find in the world."""

    now: float = 1000.0
    digest: str = "a"
    champion: int = 3
    known: Approval | None = None
    approvers: tuple[str, ...] = ()
    answers: list[ApprovalOutcome] = field(default_factory=list)

    def release(self, decision: Decision | None = None) -> ApprovalOutcome:
        asked = Approval(
            digest=self.digest, package="p", champion=self.champion, since=self.now, until=self.now + 10 * HOURS
        )
        policy = SitePolicy(approvers=self.approvers)
        answer = decide(REQUEST, asked=asked, known=self.known, decision=decision, policy=policy)
        self.known = answer.approval
        self.answers.append(answer)
        return answer


def told(answer: ApprovalOutcome) -> str:
    return str(answer.error) if answer.error else ""


def test_a_version_waits_until_somebody_decides_and_says_how() -> None:
    registry = Registry()
    waiting = registry.release()
    assert isinstance(waiting.error, AwaitingApproval)
    assert "waits until 1970-01-01 10:16 UTC for a person's approval to replace version 3" in told(waiting)
    assert "`shiplift approve digits/4 --reason WHY`" in told(waiting)
    registry.now += HOURS
    assert registry.release().approval == waiting.approval  # asking again does not move the deadline
    assert registry.release(YES).error is None
    assert registry.release().error is None  # a rerun needs no second approval


def test_a_rejection_ends_the_release_and_another_one_asks_again() -> None:
    registry = Registry()
    registry.release()
    assert told(registry.release(NO)).startswith("rejected by bob. `shiplift rerun digits/4` asks again")
    assert isinstance(registry.release(YES).error, Rejected)  # too late
    assert isinstance(registry.release().error, AwaitingApproval)
    assert registry.release(YES).error is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"digest": "b"}, "approved by ana: checked, but its files, its package or the champion have changed since"),
        ({"champion": 7}, "approved by ana: checked, but its files, its package or the champion have changed since"),
        ({"now": 1000.0 + 11 * HOURS}, "approved by ana: checked, but after the deadline, 1970-01-01 10:16 UTC"),
        ({"approvers": ("eve",)}, "ana may not decide, only eve"),
    ],
)
def test_a_decision_that_does_not_count_says_why_and_the_version_waits_on(change: dict[str, object], why: str) -> None:
    registry = Registry()
    registry.release()
    for name, value in change.items():
        setattr(registry, name, value)
    answer = registry.release(YES)
    assert isinstance(answer.error, AwaitingApproval)
    assert why in told(answer)
    assert answer.approval.decision is None
    registry.approvers = ()
    assert registry.release(YES).error is None


def test_a_decision_before_anything_waits_does_not_count() -> None:
    assert isinstance(Registry().release(YES).error, AwaitingApproval)


EVENTS = st.sampled_from(["release", "approve", "reject", "other files", "other champion", "a day"])


@given(st.lists(EVENTS, max_size=12))
def test_nothing_is_promoted_that_nobody_approved_as_it_is_now(events: list[str]) -> None:
    registry = Registry()
    for event in events:
        if event == "other files":
            registry.digest += "x"
        elif event == "other champion":
            registry.champion += 1
        elif event == "a day":
            registry.now += 24 * HOURS
        else:
            decision = {"approve": YES, "reject": NO}.get(event)
            before = registry.known
            answer = registry.release(decision)
            if answer.error is None:
                made = answer.approval
                assert made.decision == YES
                assert (made.digest, made.champion) == (registry.digest, registry.champion)
                assert before is not None
                assert before.is_about(made)
                assert before.decision == YES or registry.now <= before.until
