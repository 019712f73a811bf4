"""A service on its way between its own pods and shared servers: something ready and right serves all the while."""

from dataclasses import replace
from typing import Any

from shiplift.runtime.serving.kubernetes.objects.names import PACKAGE, hosted_label
from shiplift.runtime.serving.kubernetes.objects.shared import selected_server
from shiplift.runtime.serving.operator.cluster.seeing import with_hosts
from shiplift.runtime.serving.operator.deciding import next_action
from shiplift.runtime.serving.operator.evidence import Evidence
from shiplift.runtime.serving.operator.observed import Observed, PodSeen, ServerSeen
from shiplift.runtime.serving.operator.resources import ConditionType
from tests.unit.runtime.serving.operator.world import CRASHING, World, name_of

ONE = name_of(1)


class Street(World):
    """A world with shared servers: each has a pod that is ready at some time, and holds the first revision."""

    def __init__(self, **spec: Any) -> None:
        super().__init__(**spec)
        self.servers: dict[str, float] = {}
        self.assigned: dict[str, str] = {}
        self.crashing: set[str] = set()
        self.off: set[str] = set()  # servers whose pod has left the route of this model
        self.lost = 0

    def open(self, name: str, *, ready_in: float = 5.0) -> None:
        self.servers[name] = self.now + ready_in
        self.assigned[ONE] = name

    def look(self) -> Observed:
        package = self.revisions[ONE].package
        assert package is not None
        servers = {
            name: ServerSeen(name=name, digests={ONE: package.repository.sha256}, pods={ONE: self.pods_on(name)})
            for name in self.servers
        }
        return with_hosts(replace(super().look(), servers=servers, assigned=dict(self.assigned)))

    def pods_on(self, server: str) -> tuple[PodSeen, ...]:
        if server in self.off or server not in self.servers:
            return ()
        ready = self.now >= self.servers[server] and server not in self.crashing
        pod = PodSeen(
            name=f"{server}-pod",
            ready=ready,
            address=f"ip-{server}",
            problem=CRASHING if server in self.crashing else None,
        )
        return (pod,)

    def leads(self) -> str | None:
        """Where the Service leads: a server, the own pods (empty), or nowhere."""
        body = self.live.get(("Service", ONE))
        if body is None:
            return None
        if body["spec"]["selector"].get(PACKAGE):
            return ""
        return selected_server(body, ONE)

    def ready(self, name: str) -> list[str]:
        server = self.leads() if name == ONE else ""
        return [pod.name for pod in self.pods_on(server) if pod.ready] if server else super().ready(name)

    def patch(self, key: tuple[str, str], patch: Any) -> None:
        if hosted_label(ONE) in patch["metadata"]["labels"]:
            self.off.add(key[1].removesuffix("-pod"))
        else:
            super().patch(key, patch)

    def operate(self, what: str) -> None:
        super().operate(what)
        served = any(ONE in weights for weights in self.served().values())
        if self.settled_once and served and not self.ready(ONE):
            self.lost += 1

    settled_once = False

    def settle(self) -> None:
        self.run(90, until=World.settled)
        assert self.settled(), self.status
        self.settled_once = True


def serving(**spec: Any) -> Street:
    street = Street(**spec)
    street.settle()
    return street


def shared(**spec: Any) -> Street:
    street = serving(**spec)
    street.open("shared-1")
    street.run(40)
    assert (street.leads(), street.status.server) == ("shared-1", "shared-1")
    return street


def test_a_service_moves_once_the_server_is_ready_and_right_and_its_own_pods_go() -> None:
    street = serving()
    street.open("shared-1", ready_in=20)
    ready = []
    for _ in range(60):
        street.turn()
        ready.append(street.status.holds(ConditionType.READY))
        if street.now < street.servers["shared-1"]:
            assert street.leads() == ""
    assert street.leads() == "shared-1"
    assert all(ready)
    assert street.lost == 0
    assert not {kind for kind, name in street.live if name == ONE} & {"Deployment", "PodDisruptionBudget"}
    assert street.status.ready_replicas == 1


def test_its_own_pods_stay_until_no_request_can_be_on_its_way_there() -> None:
    street = serving()
    street.open("shared-1")
    street.run(60, until=lambda w: w.leads() == "shared-1")
    moved_at = street.now
    street.run(60, until=lambda w: ("Deployment", ONE) not in w.live)
    assert 10 <= street.now - moved_at < 15


def test_on_a_shared_server_nothing_is_written_when_nothing_changes() -> None:
    street = shared()
    street.writes.clear()
    street.evidence = Evidence()  # as after a restart of the operator
    street.run(60)
    assert street.writes == []


def test_a_server_takes_over_from_another() -> None:
    street = shared()
    street.open("shared-2", ready_in=10)
    street.run(30)
    assert (street.leads(), street.lost) == ("shared-2", 0)
    assert ("Deployment", ONE) not in street.live


def test_without_a_plan_it_stays_where_it_is() -> None:
    street = shared()
    street.assigned.clear()
    street.run(60)
    assert street.leads() == "shared-1"


def test_back_to_its_own_pods_without_a_moment_without() -> None:
    street = shared()
    street.assigned[ONE] = ""
    street.run(40)
    assert (street.leads(), street.lost, street.status.server) == ("", 0, "")


def test_a_model_that_does_not_work_on_a_server_stays_where_it_is_and_is_isolated() -> None:
    street = serving()
    street.wrong.add("shared-1")
    street.open("shared-1")
    street.run(60)
    assert (street.leads(), street.lost) == ("", 0)
    assert street.status.isolated_revision == ONE
    assert street.status.holds(ConditionType.READY)
    assert any("gets pods of its own: shared-1 can't serve it" in event for event in street.events)


def test_a_model_that_no_longer_answers_on_a_server_gets_its_own_pods() -> None:
    street = shared()
    street.silent.add("shared-1-pod")
    street.run(90)
    assert (street.leads(), street.lost) == ("", 0)
    assert street.status.isolated_revision == ONE
    street.open("shared-2")
    street.run(90)
    assert street.leads() == ""


def test_a_pod_that_answers_a_model_wrongly_leaves_its_route_and_no_other() -> None:
    street = shared()
    street.wrong.add(ONE)
    street.run(60, until=lambda w: w.off)
    street.wrong.clear()
    assert street.off == {"shared-1"}
    street.run(40)
    assert street.leads() == ""


def test_a_server_that_keeps_ending_is_left() -> None:
    street = shared()
    street.crashing.add("shared-1")
    street.run(60)
    assert street.leads() == ""
    assert street.status.isolated_revision == ONE
    assert any("any of its models may cause" in event for event in street.events)


def test_what_was_isolated_may_share_again_after_an_hour_of_serving_alone() -> None:
    street = shared()
    street.silent.add("shared-1-pod")
    street.run(90)
    street.silent.clear()
    del street.servers["shared-1"]
    street.now += 3600
    street.run(10)
    assert street.status.isolated_revision == ""


def test_a_new_revision_starts_on_its_own_pods_and_the_former_one_stays_behind() -> None:
    street = shared()
    street.want(2)
    street.run(200, until=lambda w: w.settled() and w.status.version == 2)
    assert street.status.version == 2
    assert (street.status.server, street.lost) == ("", 0)
    assert ("Deployment", name_of(2)) in street.live
    assert ("Service", ONE) not in street.live


def test_a_rollout_that_fails_gives_the_traffic_back_to_the_shared_server() -> None:
    street = shared()
    street.broken.add(name_of(2))
    street.want(2)
    street.run(120)
    assert street.leads() == "shared-1"
    assert street.served()["GRPCRoute digits"] == {ONE: 100}
    assert ("Deployment", ONE) not in street.live


def test_what_serves_moves_although_another_revision_was_given_up() -> None:
    street = shared()
    street.broken.add(name_of(2))
    street.want(2)
    street.run(120)
    assert street.status.failed_revision == name_of(2)
    street.open("shared-2")
    street.run(30)
    assert (street.leads(), street.lost) == ("shared-2", 0)


def test_a_deleted_or_edited_service_leads_to_the_server_again() -> None:
    street = shared()
    del street.live["Service", ONE]
    street.run(5)
    assert street.leads() == "shared-1"
    for edit in ({hosted_label(ONE): "nowhere"}, {PACKAGE: ONE}):
        street.live["Service", ONE]["spec"]["selector"] = edit
        street.live["Service", ONE]["metadata"]["generation"] += 1
        street.run(5)
        assert street.leads() == "shared-1"
    assert ("Deployment", ONE) not in street.live


def test_without_a_gateway_the_front_follows() -> None:
    street = shared(gateway=False)
    assert street.live["Service", "digits"]["spec"]["selector"] == {hosted_label(ONE): "shared-1"}
    assert street.status.holds(ConditionType.READY)
    street.assigned[ONE] = ""
    street.run(40)
    assert street.live["Service", "digits"]["spec"]["selector"] == {PACKAGE: ONE}


def test_a_server_with_another_package_under_the_same_name_is_none() -> None:
    street = serving()
    street.open("shared-1", ready_in=0)
    observed = street.look()
    stale = {"shared-1": replace(observed.servers["shared-1"], digests={ONE: "0" * 64})}
    assert next_action(replace(observed, servers=stale)).measure == next_action(replace(observed, servers={})).measure
