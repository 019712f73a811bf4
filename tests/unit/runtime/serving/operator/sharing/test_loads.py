"""How much of one server a service needs, from its servers' counters and the capacity that was measured."""

import pytest

from shiplift.runtime.records.capacity import Capacity
from shiplift.runtime.serving.operator.cluster.observing import Snapshot
from shiplift.runtime.serving.operator.observed import RevisionSeen
from shiplift.runtime.serving.operator.resources import ServiceSpec, ServiceStatus
from shiplift.runtime.serving.operator.sharing import loads
from shiplift.runtime.serving.operator.sharing.loads import ServiceLoads
from shiplift.runtime.serving.operator.sharing.tenants import Inhabitant
from tests.unit.examples import package
from tests.unit.runtime.serving.operator.world import cluster

SEEN = RevisionSeen(package=package(), capacity=Capacity(peak_per_s=60, within_slo_per_s=50))
SNAPSHOT = Snapshot(taken_at=0, revisions={"digits-1": SEEN})


class Minutes:
    """Reads a service once a minute, whose servers have counted so much in total; None: one did not answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.total = 1000.0, 0
        self.loads = ServiceLoads()
        self.counted: int | None = 0
        monkeypatch.setattr(loads, "_total", lambda *_: self.counted)
        monkeypatch.setattr(f"{loads.__name__}.time.monotonic", lambda: self.now)

    def read(self, counted: int | None, *, placement: str = "auto") -> float | None:
        self.now, self.counted = self.now + 60, counted
        spec = ServiceSpec.model_validate({"model": "digits", "revision": "digits-1", "placement": placement})
        each = Inhabitant(name="digits", spec=spec, status=ServiceStatus(revision="digits-1"))
        self.loads.read(SNAPSHOT, {"digits": each}, cluster())
        return self.loads.of("digits")


@pytest.fixture
def minutes(monkeypatch: pytest.MonkeyPatch) -> Minutes:
    return Minutes(monkeypatch)


def test_the_load_is_the_rate_over_the_capacity_and_not_known_at_first(minutes: Minutes) -> None:
    assert minutes.read(7) is None
    assert minutes.read(7 + 60 * 10) == pytest.approx(0.2)


def test_a_moment_of_traffic_counts_a_third(minutes: Minutes) -> None:
    minutes.read(0)
    minutes.read(0)
    assert minutes.read(60 * 50) == pytest.approx(0.3)


def test_a_server_that_does_not_answer_or_has_restarted_changes_the_load_little(minutes: Minutes) -> None:
    minutes.read(0)
    minutes.read(600)
    assert minutes.read(None) == pytest.approx(0.2)
    assert minutes.read(600) == pytest.approx(0.2)
    assert minutes.read(0) == pytest.approx(0.14)


def test_only_services_that_are_placed_by_load_are_asked(minutes: Minutes) -> None:
    minutes.read(0, placement="shared")
    assert minutes.read(600, placement="shared") is None
