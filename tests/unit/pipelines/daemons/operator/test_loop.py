import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shiplift.pipelines.daemons.operator.loop import RELIST_S, Loop
from shiplift.pipelines.daemons.operator.metrics import OperatorMetrics
from shiplift.pipelines.daemons.operator.process import read_site
from shiplift.runtime.base.errors import Temporary, UsageError
from shiplift.runtime.serving.operator.cluster.observing import Snapshot
from shiplift.runtime.serving.operator.deciding import Decision
from shiplift.runtime.serving.operator.evidence import Evidence
from shiplift.runtime.serving.operator.observed import GatewaySeen
from shiplift.runtime.serving.operator.repair import key_of
from shiplift.runtime.serving.operator.resources import ConditionType, ServiceStatus
from tests.unit.examples import site
from tests.unit.runtime.serving.operator.world import ROUTES, World, cluster


class Name(str):
    """A service that is seen, by its name alone."""

    status = ServiceStatus()


class Services:
    """An observer and an actor of services that exist by name; each look is noted."""

    def __init__(self, *names: str) -> None:
        self.names = set(names)
        self.looks: list[str] = []
        self.acts: list[str] = []
        self.at_once: dict[str, int] = {}
        self.most_at_once = 0
        self.fails: set[str] = set()
        self.writes = False
        self.again_s = 60.0
        self.slow_s = 0.0
        self.lock = threading.Lock()

    def everything(self) -> Snapshot:
        services: dict[str, Any] = {name: {"metadata": {"name": name}} for name in self.names}
        return Snapshot(taken_at=time.time(), services=services)

    def alone(self, name: str) -> Snapshot:
        self.looks.append(name)
        return Snapshot(taken_at=time.time(), services={name: {}} if name in self.names else {})

    def observed(self, snapshot: Snapshot, name: str, evidence: Evidence) -> Any:
        return Name(name) if name in snapshot.services else None

    def reread(self, name: Any, _applied: Any) -> Any:
        return name

    def decide(self, name: Any) -> Decision:
        status = ServiceStatus(revision="changed") if self.writes else None
        return Decision(evidence=Evidence(), status=status, again_s=self.again_s)

    def act(self, name: Any, decision: Decision) -> Evidence:
        with self.lock:
            self.at_once[name] = self.at_once.get(name, 0) + 1
            self.most_at_once = max(self.most_at_once, self.at_once[name])
        time.sleep(self.slow_s)
        with self.lock:
            self.at_once[name] -= 1
            self.acts.append(name)
        if name in self.fails:
            raise Temporary("the API server is away", do="Wait.")
        return decision.evidence

    def loop(self, **changes: Any) -> Loop:
        every: Any = self
        metrics, unread = OperatorMetrics(), SimpleNamespace(look=lambda *_: None, forget=lambda _: None)
        metrics.seen = unread  # type: ignore[assignment] # here a service is only its name
        return Loop(every, every, metrics, decide=self.decide, **changes)


def run(loop: Loop, services: Services, *, until: Any, threads: int = 3) -> None:
    stop = threading.Event()
    runner = threading.Thread(target=loop.run, args=(stop,), kwargs={"threads": threads})
    runner.start()
    deadline = time.monotonic() + 120
    while not until() and time.monotonic() < deadline:
        time.sleep(0.01)
    stop.set()
    runner.join(timeout=120)
    assert until(), services.acts


def test_every_service_is_looked_at_from_one_list() -> None:
    services = Services("a", "b", "c")
    run(services.loop(), services, until=lambda: set(services.acts) == {"a", "b", "c"})
    assert services.looks == []


def test_nothing_is_written_because_of_a_list_alone() -> None:
    services = Services("a")
    services.writes = True
    run(services.loop(), services, until=lambda: services.acts)
    assert "a" in services.looks


def test_a_service_that_something_happens_to_is_looked_at_at_once_and_never_twice_at_a_time() -> None:
    services = Services("a", "b")
    services.slow_s = 0.1
    loop = services.loop()

    def woken() -> bool:
        loop.wake("a")
        return services.acts.count("a") >= 4

    run(loop, services, until=woken)
    assert services.most_at_once == 1
    assert len(services.looks) < 10  # however often it was woken


def test_an_error_of_one_service_stops_no_other() -> None:
    services = Services("bad", "good")
    services.fails, services.again_s = {"bad"}, 0.2
    loop = services.loop()
    run(loop, services, until=lambda: services.acts.count("good") >= 4)
    assert 1 <= services.acts.count("bad") <= services.acts.count("good")


def test_who_does_not_lead_does_nothing() -> None:
    services = Services("a")
    loop = services.loop(leads=lambda: False)
    loop.relist()
    began = time.monotonic()
    run(loop, services, until=lambda: time.monotonic() - began > 0.5)
    assert services.acts == []


def test_a_deleted_service_is_forgotten() -> None:
    services = Services("a")
    loop = services.loop()
    loop.turn("a")
    services.names.clear()
    loop.wake("a")
    loop.turn("a")
    assert loop._services == {}


def test_each_list_is_published_by_the_leader_alone() -> None:
    told: list[Snapshot] = []

    def publish(snapshot: Snapshot) -> None:
        told.append(snapshot)
        raise KeyError("data")

    services = Services("a")
    services.loop(leads=lambda: False, publish=publish).relist()
    assert told == []
    loop = services.loop(publish=publish)
    loop.relist()  # an error ends nothing
    assert len(told) == 1
    assert loop.healthy()


def test_another_revision_is_published_at_once_for_who_looks_it_up() -> None:
    services, published = Services("a"), list[float]()
    services.writes = True
    loop = services.loop(publish=lambda _: published.append(time.monotonic()))
    run(loop, services, until=lambda: len(published) >= 2)
    assert published[1] - published[0] < RELIST_S / 2


def test_a_list_that_fails_ends_nothing() -> None:
    services = Services("a")
    loop = services.loop()

    def broken() -> Snapshot:
        raise KeyError("metadata")

    services.everything = broken  # type: ignore[method-assign]
    loop.relist()
    assert loop.healthy()


def test_a_site_without_a_cluster_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "site.json"
    file.write_text(site(tmp_path).model_dump_json())
    with pytest.raises(UsageError, match="is a machine"):
        read_site(file)
    file.write_text(site(tmp_path).model_copy(update={"place": cluster()}).model_dump_json())
    assert read_site(file).place == cluster()
    with pytest.raises(UsageError, match="is not a valid site"):
        read_site(tmp_path / "missing.json")


class OfWorld:
    """A service that lives in a simulated cluster, as the loop's observer and actor."""

    def __init__(self, world: World) -> None:
        self.world = world

    def alone(self, name: str) -> Snapshot:
        return Snapshot(taken_at=time.time(), services={name: {}})

    def observed(self, _snapshot: Snapshot, _name: str, evidence: Evidence) -> Any:
        self.world.evidence = evidence
        return self.world.look()

    def reread(self, observed: Any, applied: Any) -> Any:
        live = {key_of(body): self.world.live[key_of(body)] for body in applied}
        return replace(observed, live={**observed.live, **live})

    def act(self, _observed: Any, decision: Decision) -> Evidence:
        self.world.act(decision)
        return self.world.evidence


def test_what_a_route_answers_is_told_in_the_same_look() -> None:
    world = World()
    world.run(60, until=World.settled)
    every: Any = OfWorld(world)
    loop = Loop(every, every, OperatorMetrics())
    loop.turn("digits")
    world.gateway = GatewaySeen(accepts=False, changed_at=world.now)
    loop.turn("digits")
    assert not world.status.holds(ConditionType.READY)
    world.now += 5
    world.gateway = GatewaySeen(accepts=True, changed_at=world.now)
    world.writes.clear()
    loop.turn("digits")
    assert world.status.holds(ConditionType.READY)
    assert set(world.writes) == {"status"}


def test_a_route_that_was_deleted_serves_again_after_one_look_and_the_status_says_both() -> None:
    world = World()
    world.run(60, until=World.settled)
    every: Any = OfWorld(world)
    loop = Loop(every, every, OperatorMetrics())
    loop.turn("digits")
    del world.live[ROUTES[0]]
    world.writes.clear()
    world.events.clear()
    loop.turn("digits")
    assert world.live[ROUTES[0]]
    assert world.status.holds(ConditionType.READY)
    assert world.writes == ["apply GRPCRoute digits", "status", "status"]
    assert [event.split(":")[0] for event in world.events if event.startswith("Ready")] == [
        "Ready is False",
        "Ready is True",
    ]
