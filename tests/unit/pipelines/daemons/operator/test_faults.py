"""An API server that fails, refuses and hangs up delays the operator, and makes it do nothing wrong."""

import random

import pytest

from shiplift.pipelines.daemons.operator.loop import Loop
from shiplift.pipelines.daemons.operator.metrics import OperatorMetrics
from shiplift.runtime.serving.operator.cluster.acting import Actor
from shiplift.runtime.serving.operator.cluster.observing import Observer
from shiplift.runtime.serving.operator.deciding import next_action
from shiplift.runtime.serving.operator.evidence import Evidence
from shiplift.runtime.serving.operator.resources import ConditionType
from tests.unit.api_server import ApiServer
from tests.unit.runtime.serving.operator.cluster.test_cluster import Right, look, ready_pod
from tests.unit.runtime.serving.operator.cluster.test_cluster import server as server  # noqa: PLC0414 - a fixture
from tests.unit.runtime.serving.operator.world import cluster, name_of


@pytest.mark.parametrize(
    "fault", [409, 500, 0, *(pytest.param(code, marks=pytest.mark.slow) for code in (410, 429, 503))]
)
def test_a_fault_in_any_request_only_delays(server: ApiServer, fault: int) -> None:
    ready_pod(server, "pod-1", name_of(1))
    api = server.api("models")
    loop = Loop(Observer(api, cluster()), Actor(api, Right()), OperatorMetrics())
    chance = random.Random(fault)
    server.faults = [fault if chance.random() < 0.2 else None for _ in range(150)]
    for _ in range(60):
        loop.turn("digits")
    assert not server.faults
    for _ in range(10):
        loop.turn("digits")
    observed = look(server, Evidence())
    assert observed.status.holds(ConditionType.READY)
    assert set(server.objects["deployments"]) == {name_of(1)}
    assert set(server.objects["httproutes"]) == {"digits", "digits-path"}
    assert next_action(observed).delete == ()
    assert set(server.objects["pods"]) == {"pod-1"}


def test_a_list_whose_page_expired_is_listed_again(server: ApiServer) -> None:
    api = server.api("models")
    loop = Loop(Observer(api, cluster()), Actor(api, Right()), OperatorMetrics())
    server.faults = [410]
    loop.relist()
    loop.relist()
    assert loop._snapshot.services.keys() == {"digits"}
