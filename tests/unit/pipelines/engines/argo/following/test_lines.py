"""What a pod's log says of its stages, written and read back."""

import pytest

from shiplift.pipelines.engines.argo.following.lines import line, split, started_for, told
from shiplift.runtime.records.release import Event, StageRun, StageRuns

STAGES = ("admit", "export")


def started(stage: str, target: str = "") -> str:
    return line(Event(stage=stage, target=target, kind="started"))


def progressed(stage: str, message: str, done: float | None) -> str:
    return line(Event(stage=stage, kind="progress", message=message, done=done))


def finished(run: StageRun) -> str:
    return line(Event.finished(run))


@pytest.mark.parametrize(
    "run",
    [
        StageRun(name="admit", seconds=3.25),
        StageRun(name="admit", seconds=0.5, cached=True, message="2 warnings"),
        StageRun(name="admit", seconds=12.0, outcome="failed", message="it broke: 3 of 4"),
        StageRun(name="admit", outcome="inconclusive", message="p99: slow"),
    ],
)
def test_what_is_written_is_read(run: StageRun) -> None:
    reports = list(told([started("admit"), finished(run)], STAGES))
    assert reports == [StageRuns(under_way="admit"), StageRuns(runs=(run,))]


def test_the_stage_under_way_is_the_last_that_started() -> None:
    lines = [
        "Traceback (most recent call last):",
        started("admit"),
        progressed("admit", "scanning", 0.5),
        "admit: export: started",
        finished(StageRun(name="admit")),
        started("export"),
        "deploy: started",
        progressed("export", "converting", None),
    ]
    last = list(told(lines, STAGES))[-1]
    assert (last.under_way, [run.name for run in last.runs]) == ("export", ["admit"])


def test_a_stage_of_a_target_says_which() -> None:
    reports = list(told([started("export", "cpu: fast"), finished(StageRun(name="export"))], STAGES))
    assert reports[0] == StageRuns(under_way="export", target="cpu: fast")
    assert [run.target for run in reports[1].runs] == ["cpu: fast"]
    assert reports[1].target == ""


def test_a_stage_that_is_not_under_way_can_not_end() -> None:
    assert list(told([started("admit"), finished(StageRun(name="export"))], STAGES)) == [StageRuns(under_way="admit")]


def test_a_line_begins_with_its_stage() -> None:
    assert split("export: converting (30%)", STAGES) == ("export", "converting (30%)")
    assert split("deploy: somewhere else", STAGES) == ("", "deploy: somewhere else")
    assert split("admit", STAGES) == ("", "admit")


def test_the_target_of_a_line_is_that_of_a_stage_that_begins() -> None:
    texts = [split(line, STAGES)[1] for line in (started("export", "a b"), started("export"), "export: halfway")]
    assert [started_for(text) for text in texts] == ["a b", "", ""]


def test_a_stage_that_starts_again_has_not_ended() -> None:
    """An effect that was a cache hit is set up after all."""
    found = StageRun(name="admit", cached=True)
    texts = [started("admit"), finished(found), started("export"), started("admit"), finished(StageRun(name="admit"))]
    assert list(told(texts, STAGES))[-1] == StageRuns(runs=(StageRun(name="admit"),))
