"""Which services may share a server: what keeps one alone is told, and nothing shares that has not proved itself."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from shiplift.runtime.records.capacity import Capacity
from shiplift.runtime.records.serving import Nodes, ServerNeeds
from shiplift.runtime.records.site import Sharing
from shiplift.runtime.serving.operator.observed import RevisionSeen, TargetPods
from shiplift.runtime.serving.operator.resources import (
    ConditionType,
    Reason,
    ScalingSpec,
    ServiceSpec,
    ServiceStatus,
    StatusCondition,
    Weight,
)
from shiplift.runtime.serving.operator.sharing.placing import Tenant
from shiplift.runtime.serving.operator.sharing.tenants import Inhabitant, memory_of, tenants_of, why_own
from tests.unit.examples import artifact, package
from tests.unit.runtime.serving.operator.world import cluster

NOW = 100_000.0
CLUSTER = cluster()
SEEN = RevisionSeen(package=package(), artifacts_uri="s3://models")


def spec(**changes: Any) -> ServiceSpec:
    return ServiceSpec(**{"model": "digits", "revision": "digits-1", "placement": "shared"} | changes)


def status(ready_for_s: float = 31, **changes: Any) -> ServiceStatus:
    since = datetime.fromtimestamp(NOW - ready_for_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = StatusCondition(type=ConditionType.READY, status="True", reason=Reason.SERVING, last_transition_time=since)
    fields: dict[str, Any] = {
        "revision": "digits-1",
        "weights": (Weight(revision="digits-1", percent=100),),
        "conditions": (ready,),
    }
    return ServiceStatus(**fields | changes)


def tenant(load: float | None = None, seen: RevisionSeen = SEEN, **changes: Any) -> Tenant:
    made = Inhabitant(name="digits", spec=spec(), status=status(), load=load)
    (each,) = tenants_of({"digits": replace(made, **changes)}, {"digits-1": seen}, CLUSTER, NOW)
    return each


def both(each: Tenant) -> tuple[bool, bool]:
    return each.may_join, each.may_stay


@pytest.mark.parametrize(
    ("changes", "seen", "why"),
    [
        ({}, {}, ""),
        ({"placement": "own"}, {}, "its placement is `own`"),
        ({"placement": None}, {}, "its placement is `own`"),
        ({"production": True}, {}, "it is for production"),
        ({"scaling": ScalingSpec(max_replicas=3)}, {}, "an autoscaler chooses the number of its pods"),
        ({"scaling": ScalingSpec(to_zero=True)}, {}, "it is scaled to zero"),
        ({}, {"others": (TargetPods(name="x", package=package(), artifacts_uri=""),)}, "several targets serve it"),
        ({}, {"package": package(server="nvidia")}, "its target has its own server or a GPU"),
        ({}, {"package": package(nodes=Nodes(gpus=1))}, "its target has its own server or a GPU"),
        ({}, {"package": package(sequences=True)}, "it serves sequences, whose state is on one server"),
    ],
)
def test_services_that_need_their_own_pods(changes: dict[str, Any], seen: dict[str, Any], why: str) -> None:
    assert why_own(spec(**changes), replace(SEEN, **seen), CLUSTER) == why


def test_the_installation_decides_where_the_service_does_not() -> None:
    shares = CLUSTER.model_copy(update={"sharing": Sharing(placement="shared")})
    assert why_own(spec(placement=None), SEEN, shares) == ""
    assert why_own(spec(placement="own"), SEEN, shares) != ""


def test_only_what_has_been_ready_for_a_while_joins_and_what_stutters_stays() -> None:
    assert both(tenant()) == (True, True)
    assert both(tenant(status=status(ready_for_s=29))) == (False, True)
    assert both(tenant(status=status(conditions=()))) == (False, True)


def test_no_service_joins_during_its_rollout() -> None:
    shares = (Weight(revision="digits-1", percent=90), Weight(revision="digits-2", percent=10))
    assert both(tenant(status=status(weights=shares))) == (False, True)
    assert both(tenant(spec=spec(revision="digits-2"))) == (False, True)


def test_what_went_wrong_on_a_server_keeps_away() -> None:
    assert both(tenant(status=status(isolated_revision="digits-1"))) == (False, False)
    assert both(tenant(status=status(isolated_revision="digits-0"))) == (True, True)


@pytest.mark.parametrize(
    ("load", "may"),
    [(None, (False, True)), (0.05, (True, True)), (0.2, (False, True)), (0.31, (False, False))],
)
def test_auto_shares_while_there_is_little_load(load: float | None, may: tuple[bool, bool]) -> None:
    assert both(tenant(load, spec=spec(placement="auto"))) == may


def test_the_measured_memory_counts_or_else_what_the_files_suggest() -> None:
    assert memory_of(replace(SEEN, capacity=Capacity(peak_per_s=1, within_slo_per_s=1, memory_mb=123))) == 123
    assert memory_of(replace(SEEN, package=package(repository=artifact("a", size_bytes=100 << 20)))) == 456


def test_another_way_to_start_the_server_is_another_flavor() -> None:
    flavors = {
        tenant(seen=replace(SEEN, package=each)).flavor
        for each in (
            package(),
            package(needs=ServerNeeds(rate_limiter=True)),
            package(nodes=Nodes(selector={"a": "b"})),
        )
    }
    flavors.add(tenant(spec=spec(replicas=2)).flavor)
    assert len(flavors) == 4
    assert tenant(seen=replace(SEEN, package=package(needs=ServerNeeds(request_timeout_s=5)))).flavor in flavors
