"""When stages ran, and what they waited for."""

from shiplift.runtime.gates.timeline import QUEUE, REPORT, span_s, timeline
from shiplift.runtime.records.release import ReleaseReport, StageRun
from shiplift.runtime.records.verdict import Outcome


def report(*runs: StageRun, requested_at: float = 100.0, seconds: float = 10.0) -> ReleaseReport:
    return ReleaseReport(
        model="digits",
        version=1,
        verdict=Outcome.PASS,
        alias="",
        endpoint=None,
        stages=runs,
        checks=(),
        release="digits-1",
        reason="",
        exit_code=0,
        seconds=seconds,
        since_request_seconds=seconds,
        requested_at=requested_at,
        overhead_seconds=0.0,
    )


def test_a_stage_waits_for_the_one_that_ended_last_before_it() -> None:
    cpu = StageRun(name="tune", target="cpu", started_at=103.0, seconds=2.0)
    gpu = StageRun(name="tune", target="gpu", started_at=103.5, seconds=4.0)
    deploy = StageRun(name="deploy", started_at=108.0, seconds=1.0)
    bars = timeline(report(StageRun(name="admit", started_at=101.0, seconds=2.0), cpu, gpu, deploy))
    told = [(bar.title, bar.begins_s, bar.after, bar.waited_s) for bar in bars]
    assert told == [
        (QUEUE, 0.0, "", 0.0),
        ("admit", 1.0, QUEUE, 0.0),
        ("tune cpu", 3.0, "admit", 0.0),
        ("tune gpu", 3.5, "admit", 0.5),
        ("deploy", 8.0, "tune gpu", 0.5),
        (REPORT, 9.0, "deploy", 0.0),
    ]
    assert span_s(bars) == 10


def test_stages_that_do_not_say_when_they_began_follow_one_another() -> None:
    runs = StageRun(name="admit", seconds=2.0), StageRun(name="export", outcome="skipped"), StageRun(name="gate")
    assert [(bar.name, bar.begins_s) for bar in timeline(report(*runs, requested_at=0.0))] == [
        ("admit", 0.0),
        ("gate", 2.0),
    ]


def test_a_release_without_stages_has_no_bars() -> None:
    assert timeline(report()) == ()
