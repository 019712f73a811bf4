"""The 99th percentile in the status: measured once a minute, told if clients sent enough, written if it changed."""

from dataclasses import replace

import pytest

from shiplift.runtime.serving.operator import measurements as m
from shiplift.runtime.serving.operator.cluster.latencies import read
from shiplift.runtime.serving.operator.evidence import LatencyReading
from shiplift.runtime.serving.operator.upkeep import latency
from tests.unit.runtime.serving.operator.world import World

METRICS = """\
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="digits",version="1"} 940
nv_inference_request_success{model="other",version="1"} 7
nv_inference_request_failure{model="digits",reason="BACKEND",version="1"} 3
nv_inference_request_summary_us{model="digits",version="1",quantile="0.5"} 700
nv_inference_request_summary_us{model="digits",version="1",quantile="0.99"} 4200
nv_inference_request_summary_us{model="other",version="1",quantile="0.99"} 9999
"""


class Measured(World):
    """A world whose pods answer so many requests a minute, with this percentile in ms."""

    requests, p99_ms, asked = 0.0, 5.0, 0

    def measure(self, measurement: m.Measurement) -> None:
        super().measure(measurement)
        if isinstance(measurement, m.ReadLatency):
            self.asked += 1
            so_far = {"pod": self.evidence.latency.requests.get("pod", 0.0) + self.requests}
            read = latency.after(self.evidence.latency, so_far, self.p99_ms, measurement, self.now)
            self.evidence = replace(self.evidence, latency=read)


def serving() -> Measured:
    world = Measured()
    world.run(60, until=World.settled)
    world.requests = 5000
    world.run(130)
    assert world.status.p99_milliseconds == 5
    world.writes.clear()
    return world


def test_metrics_are_read_for_one_model() -> None:
    assert read(METRICS, "digits") == (943, 4.2)
    assert read(METRICS, "nobody") == (0, None)
    assert read(METRICS.replace(" 4200", " Nan"), "digits") == (943, None)


def test_a_small_change_is_not_written_and_a_large_one_within_two_minutes() -> None:
    world = serving()
    for p99_ms in (5.4, 4.6, 5.2):
        world.p99_ms = p99_ms
        world.run(70)
    assert world.writes == []
    world.p99_ms = 7.1234
    world.run(120)
    assert (world.writes, world.status.p99_milliseconds) == (["status"], 7.12)


def test_however_it_changes_it_is_written_once_a_minute_at_most() -> None:
    world = serving()
    world.asked = 0
    for number in range(120):
        world.p99_ms = 5 * 2 ** (number % 2)
        world.turn()
    assert len(world.writes) <= world.asked <= 1 + 120 * 5 / latency.EVERY_S


def test_without_clients_the_latency_is_unknown_and_not_written() -> None:
    world = serving()
    world.requests = 90
    world.run(130)
    assert (world.writes, world.status.p99_milliseconds) == (["status"], None)
    for p99_ms in (5, 50, 0.5):
        world.p99_ms = p99_ms
        world.run(65)
    assert world.writes == ["status"]


def test_an_operator_that_has_just_started_keeps_the_reported_latency() -> None:
    world = serving()
    world.evidence = replace(world.evidence, latency=LatencyReading())
    world.turn()
    assert world.status.p99_milliseconds == 5


@pytest.mark.parametrize(("own", "told"), [(0, 5.0), (60, None)])
def test_the_operators_own_requests_are_no_clients(own: int, told: float | None) -> None:
    before = LatencyReading(asked_at=1, requests={"a": 0.0})
    asked = m.ReadLatency(revision="r", own=own)
    assert latency.after(before, {"a": 150.0}, 5.0, asked, 61).p99_ms == told
    assert latency.after(before, {"b": 5000.0}, 5.0, asked, 61).p99_ms is None


def test_clients_are_what_the_heartbeat_can_t_have_sent() -> None:
    before = LatencyReading(asked_at=1, requests={"a": 0.0})
    asked = m.ReadLatency(revision="r", own=96, beat=4, interval_s=5)
    assert latency.after(before, {"a": 52.0}, None, asked, 61).per_minute == 0  # 13 beats
    assert latency.after(before, {"a": 152.0}, None, asked, 61).per_minute == 100
    assert latency.after(before, {"b": 152.0}, None, asked, 61).per_minute is None
    assert latency.after(LatencyReading(), {"a": 152.0}, None, asked, 61).per_minute is None
    world = serving()
    world.requests = 400
    world.run(180)
    assert (world.status.client_requests_per_minute or 0) > 100
