"""The watch over bakes on a machine, without a server: what it reads, and what ends a bake."""

import math
from pathlib import Path

from shiplift.pipelines.daemons.baking import BakeWatch
from shiplift.pipelines.daemons.prober import BAD_BEATS, Prober, ProbeResult, State
from shiplift.runtime.records.baking import Alarm, BakeReading, Baking
from shiplift.runtime.serving.alarm_readings import reading_of, worst_of
from shiplift.runtime.serving.machine import baking
from shiplift.runtime.serving.machine.served import note_served
from tests.unit.examples import artifact, package

PAGE = """
nv_inference_request_success{model="digits",version="2"} 90
nv_inference_request_success{model="digits",version="1"} 5000
nv_inference_request_success{model="other",version="2"} 7
nv_inference_request_failure{model="digits",reason="OTHER",version="2"} 3
nv_inference_request_failure{model="digits",reason="CANCELED",version="2"} 40
nv_inference_request_summary_us{model="digits",version="2",quantile="0.9"} 1500
nv_inference_request_summary_us{model="digits",version="2",quantile="0.99"} nan
"""


def known(**fields: object) -> Baking:
    fields = {"model": "digits", "version": 2, "package": package(version=2).repository.sha256, "for_s": 60} | fields
    return Baking.model_validate(fields)


def test_a_reading_is_about_the_version_that_bakes() -> None:
    reading = reading_of(PAGE, "digits", 2, 1.0)
    assert reading == BakeReading(at_s=1.0, answered=90, failed=3, latency_ms={0.9: 1.5})
    assert reading_of(None, "digits", 2, 1.0) == BakeReading(at_s=1.0)


def test_only_numbers_are_the_answer_to_a_query() -> None:
    def vector(*values: str) -> object:
        return {"data": {"resultType": "vector", "result": [{"metric": {}, "value": [1.0, value]} for value in values]}}

    assert (worst_of(vector("1", "3"), below=False), worst_of(vector("1", "3"), below=True)) == (3.0, 1.0)
    assert worst_of({"data": {"resultType": "scalar", "result": [1.0, "2"]}}, below=False) == 2.0
    for nothing in (vector(), vector("NaN"), vector("1", "+Inf"), {"data": {"resultType": "matrix"}}, {}, [], None):
        assert worst_of(nothing, below=False) is None


def test_a_bake_ends_when_another_version_serves(tmp_path: Path) -> None:
    before = baking.begin(tmp_path, known())
    note_served(tmp_path, package(version=2))
    assert baking.under_way(tmp_path, "digits") == before
    note_served(tmp_path, package(version=3, repository=artifact("b", kind="tree")))
    assert baking.under_way(tmp_path, "digits") is None
    note_served(tmp_path, package(version=2))
    newer = baking.begin(tmp_path, known(requested_at=9.0))
    assert baking.change(tmp_path, before, lambda now: now.model_copy(update={"state": "passed"})) is None
    assert baking.baking(tmp_path, "digits") == newer


def test_the_heartbeat_s_word_is_about_the_package_that_bakes(tmp_path: Path) -> None:
    prober = Prober(tmp_path)
    digest, state = package().repository.sha256, State(package=package())
    assert prober.wrong("digits", digest) is None
    right, wrong = ProbeResult(seconds=0.01), ProbeResult(seconds=0.01, problem="off by 3", bad=True)
    prober._states["digits"] = state = state.after(right, 1.0)
    assert (prober.wrong("digits", digest), prober.wrong("digits", "another")) == ("", None)
    for _ in range(BAD_BEATS):
        assert prober.wrong("digits", digest) == ""
        prober._states["digits"] = state = state.after(wrong, 2.0)
    assert prober.wrong("digits", digest) == "off by 3"


def test_without_a_stack_nothing_is_looked_at(tmp_path: Path) -> None:
    baking.begin(tmp_path, known(alarms=[Alarm(kind="p99", limit=math.pi)]))
    BakeWatch(tmp_path, Prober(tmp_path)).look()
    assert baking.baking(tmp_path, "digits") == known(alarms=[Alarm(kind="p99", limit=math.pi)])
