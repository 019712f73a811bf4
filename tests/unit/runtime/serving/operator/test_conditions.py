"""Kubernetes events of conditions: what people are told, and what of it is a warning."""

import pytest

from shiplift.runtime.serving.operator.conditions import events_of
from shiplift.runtime.serving.operator.resources import ConditionType, Reason, ServiceStatus, StatusCondition


def status(kind: ConditionType, value: bool | None, reason: Reason = Reason.SERVING) -> ServiceStatus:
    if value is None:
        return ServiceStatus()
    return ServiceStatus(conditions=(StatusCondition(type=kind, status="True" if value else "False", reason=reason),))


@pytest.mark.parametrize(
    ("kind", "before", "after", "told"),
    [
        (ConditionType.READY, False, True, [False]),
        (ConditionType.READY, True, False, [False]),  # a rollout that begins is not a warning
        (ConditionType.AVAILABLE, True, False, [True]),
        (ConditionType.AVAILABLE, None, False, []),  # it has never been available
        (ConditionType.VERIFIED, True, False, [True]),
        (ConditionType.STALLED, False, True, [True]),
        (ConditionType.STALLED, True, False, [False]),
        (ConditionType.RECONCILING, None, True, [False]),
        (ConditionType.RECONCILING, True, False, []),
        (ConditionType.AVAILABLE, True, True, []),
    ],
)
def test_a_change_is_an_event_and_a_warning_if_it_is_bad(
    kind: ConditionType, before: bool | None, after: bool, told: list[bool]
) -> None:
    events = events_of(status(kind, before), status(kind, after))
    assert [event.warning for event in events] == told
    assert all(event.message.startswith(f"{kind} is ") for event in events)


def test_another_reason_is_an_event_and_idleness_is_none() -> None:
    serving = status(ConditionType.AVAILABLE, True)
    canary = status(ConditionType.AVAILABLE, True, Reason.CANARY)
    assert [event.reason for event in events_of(serving, canary)] == [Reason.CANARY]
    assert events_of(serving, status(ConditionType.SCALING_ACTIVE, True, Reason.IDLE)) == ()
