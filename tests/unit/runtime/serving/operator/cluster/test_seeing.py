"""Pods, as the API server describes them."""

from typing import Any

import pytest

from shiplift.runtime.serving.kubernetes.objects.deployment import DRAIN_S
from shiplift.runtime.serving.kubernetes.objects.names import PACKAGE
from shiplift.runtime.serving.operator.cluster.seeing import groups_ending, pods_of, stopping_of

_DELETED_AT = 1767225600.0  # 2026-01-01T00:00:00Z


def pod(*, ready: bool = True, ends: bool = True) -> dict[str, Any]:
    """A pod whose deletion was asked for at `_DELETED_AT`, with 45 s to end in."""
    ending = {"deletionTimestamp": "2026-01-01T00:00:45Z", "deletionGracePeriodSeconds": 45}
    return {
        "metadata": {"name": "a", "labels": {PACKAGE: "digits-1"}, **(ending if ends else {})},
        "status": {"conditions": [{"type": "Ready", "status": str(ready)}], "podIP": "10.0.0.1"},
    }


@pytest.mark.parametrize(
    ("body", "after_s", "answers"),
    [
        (pod(), 0, True),
        (pod(), DRAIN_S - 1, True),
        (pod(), DRAIN_S, False),  # its server is told to end
        (pod(ready=False), 0, False),
        (pod(ends=False), 0, False),
    ],
)
def test_a_deleted_pod_answers_until_its_server_gets_sigterm(
    body: dict[str, Any], after_s: float, answers: bool
) -> None:
    assert groups_ending([body], _DELETED_AT + after_s) == (frozenset({"digits-1"}) if answers else frozenset())


def test_it_is_none_of_the_pods_that_take_requests() -> None:
    assert pods_of([pod()], ()) == {}
    assert [seen.ready for seen in pods_of([pod(ends=False)], ())["digits-1"]] == [True]


@pytest.mark.parametrize(
    ("body", "after_s", "stops"),
    [
        (pod(), DRAIN_S - 1, False),
        (pod(), DRAIN_S, True),
        (pod(ready=False), DRAIN_S + 20, True),  # it may pass its probes now and then
        (pod(ends=False), DRAIN_S, False),
    ],
)
def test_no_service_may_lead_to_a_pod_whose_server_got_sigterm(
    body: dict[str, Any], after_s: float, stops: bool
) -> None:
    assert stopping_of([body], _DELETED_AT + after_s) == ({"a": "digits-1"} if stops else {})
