import json
from pathlib import Path
from typing import Any

import pytest

from shiplift.pipelines.commands.releases import gate_replay
from shiplift.pipelines.engines.local.engine import LocalEngine
from shiplift.pipelines.engines.local.releases import Releases
from shiplift.pipelines.engines.replay import Replay
from shiplift.pipelines.engines.replay import replay as judge_again
from shiplift.runtime.base.errors import NotFound, SpecInvalid
from shiplift.runtime.gates import policy
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.precision import Candidate, Candidates
from shiplift.runtime.records.release import ReleaseReport, StageRun
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.records.verdict import Outcome
from shiplift.runtime.spec.groups import Requirements
from shiplift.runtime.spec.measurement import Slo
from shiplift.runtime.spec.model import Data, Quality
from shiplift.runtime.spec.rules import Policy
from tests.unit.examples import admitted, artifact, champion, comparison, deployment, exported, load_report, site
from tests.unit.examples import release_report as report


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(LocalEngine, "site", property(lambda engine: site(engine.home)))
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    return tmp_path


def released(home: Path, version: int, **records: Record) -> None:
    """An ended release with the records of its stages."""
    stages = []
    (home / "records").mkdir(exist_ok=True)
    for stage, record in records.items():
        key = f"{version}{stage}".encode().hex().ljust(64, "0")[:64]
        (home / "records" / f"{key}.json").write_text(record.model_dump_json())
        stages.append(StageRun(name=stage, key=key))
    releases = Releases(home)
    name = releases.accept(Request(model="digits", version=version), Trigger()).name
    releases.end(name, report(version=version, stages=tuple(stages), release=name))


def measured(p99_ms: float = 10) -> Any:
    evidence = policy.evidence_of(
        exported(), deployment(), load_report(comparison=comparison(p99_ratio=1.2), memory_mb=p99_ms * 20), champion()
    )
    limits = Requirements(quality=Quality(), data=Data(), slo=Slo(p99_ms=40), policy=Policy())
    return policy.verdict(evidence, limits)


def judged(home: Path, text: str, name: str = "digits/3") -> Replay:
    return judge_again(LocalEngine(home), name, "policy.yaml", text)


def test_the_released_limits_give_the_released_verdict(home: Path) -> None:
    released(home, 3, admit=admitted(p99_ms=40), gate=measured())
    replay = judged(home, "")
    (release,) = replay.releases
    assert (release.before, release.after, release.flips, replay.flipped) == (Outcome.PASS, Outcome.PASS, (), 0)
    assert release.checks == measured().checks


def test_a_stricter_policy_says_what_it_would_have_refused(home: Path) -> None:
    released(home, 3, admit=admitted(p99_ms=40), gate=measured())
    replay = judged(home, "policy: {rules: [{metric: memory_mb, comparison: <=, limit: 100 MiB}]}\nslo: {p99_ms: 5}")
    (release,) = replay.releases
    assert (release.before, release.after) == (Outcome.PASS, Outcome.FAIL)
    assert (replay.flipped, replay.outcome) == (1, Outcome.FAIL)
    flips = {flip.name: (flip.before, flip.after, flip.limit_before, flip.limit_after) for flip in release.flips}
    assert flips == {"p99": ("pass", "fail", 40.0, 5.0), "memory_mb": ("", "fail", None, 100.0)}


def test_sections_that_are_left_out_stay_as_they_were(home: Path) -> None:
    released(home, 3, admit=admitted(p99_ms=5), gate=measured())
    replay = judged(home, "quality: {min_score: 0.5}")
    assert [check.verdict for check in replay.releases[0].checks if check.name == "p99"] == [Outcome.FAIL]


def test_every_version_of_a_model_is_judged_newest_first(home: Path) -> None:
    for version, memory in ((1, 5), (2, 50)):
        released(home, version, admit=admitted(), gate=measured(memory))
    replay = judged(home, "slo: {memory_mb: 500}", "digits")
    assert [(release.version, release.after) for release in replay.releases] == [(2, Outcome.FAIL), (1, Outcome.PASS)]
    assert replay.flipped == 1


def test_a_release_whose_quality_stopped_it_is_judged_by_that(home: Path) -> None:
    candidates = Candidates(
        target="local-cpu",
        metric="accuracy",
        candidates=(Candidate(precision="fp32", model=artifact(), score=0.8, samples=500),),
    )
    released(home, 3, admit=admitted(), export=exported(), quantize=candidates)
    (release,) = judged(home, "quality: {min_score: 0.7}").releases
    assert (release.after, [check.name for check in release.checks]) == (Outcome.PASS, ["parity", "accuracy"])
    assert "before the load test" in release.note
    rules = "policy: {rules: [{metric: p99_ms, comparison: <=, limit: 5}]}"
    assert judged(home, rules).releases[0].after is Outcome.INCONCLUSIVE


def test_of_several_targets_the_one_that_ended_the_release_is_judged(home: Path) -> None:
    def scored(target: str, score: float) -> Candidates:
        fp32 = Candidate(precision="fp32", model=artifact(), score=score, samples=500)
        return Candidates(target=target, metric="accuracy", candidates=(fp32,))

    released(home, 3, admit=admitted(), export=exported(), quantize=scored("small", 0.6), other=scored("large", 0.9))
    (file,) = (home / "releases").glob("*/result.json")
    done = ReleaseReport.model_validate_json(file.read_text())
    runs = {run.name: run for run in done.stages}
    key = str(runs["other"].key)
    (home / "records" / f"{key}.json").rename(home / "records" / f"{'f' * 64}.json")
    stages = (
        runs["admit"],
        runs["export"],
        StageRun(name="quantize", key="f" * 64, target="large"),
        StageRun(name="package", key="e" * 64, target="large"),
        runs["quantize"].model_copy(update={"target": "small"}),
        StageRun(name="package", key="d" * 64, target="small", outcome="refused"),
    )
    for runs_in_order, score in ((stages, 0.6), (stages[:2] + stages[4:] + stages[2:4], 0.6), (stages[:5], 0.9)):
        file.write_text(done.model_copy(update={"stages": runs_in_order}).model_dump_json())
        (release,) = judged(home, "quality: {min_score: 0.7}").releases
        assert {check.name: check.measured for check in release.checks}["accuracy"] == score


def test_a_release_without_stored_measurements_is_not_found(home: Path) -> None:
    released(home, 3)
    with pytest.raises(NotFound, match="no release with stored measurements"):
        judged(home, "")
    with pytest.raises(SpecInvalid):
        judged(home, "policy: {rules: 3}")


def test_what_it_prints_is_for_people_and_for_programs(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    released(home, 3, admit=admitted(p99_ms=40), gate=measured())
    replay = judged(home, "slo: {p99_ms: 5}")
    gate_replay.show(replay)
    output = capsys.readouterr().out
    assert "pass -> fail" in output
    assert "1 of 1 verdicts would flip" in output
    assert json.loads(replay.model_dump_json())["releases"][0]["flips"][0]["name"] == "p99"
