"""What 0.1 left is made again or still read, never misread; a release under way during the upgrade ends right.

`results_of_0_1.json` is what the ledger of 0.1 wrote for the stages of a release (at commit c29d17f).
"""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from shiplift.pipelines.engines import cache_key
from shiplift.pipelines.engines.argo.ending import ending_of
from shiplift.pipelines.engines.attempt import Attempt
from shiplift.pipelines.graph import Stage
from shiplift.pipelines.release import RELEASE
from shiplift.runtime.base.errors import Cancelled, Temporary
from shiplift.runtime.base.secrets import sign
from shiplift.runtime.records.request import Request
from shiplift.runtime.records.verdict import Outcome, Verdict
from shiplift.runtime.store.ledger import Ledger
from shiplift.runtime.store.registry.client import Registry
from tests.unit.examples import site
from tests.unit.pipelines.engines.test_same_records import Engines, engines, release_that
from tests.unit.runtime.store.test_ledger import Runs

__all__ = ["engines"]  # a fixture

OLD: dict[str, Any] = json.loads(Path(__file__).with_name("results_of_0_1.json").read_text())
REQUEST = Request(model="digits", version=3)
STAGES = {stage.name: stage for stage in RELEASE.flat() if stage.name in OLD["keys"]}


@pytest.fixture
def runs() -> Runs:
    """A registry with what 0.1 wrote."""
    runs = Runs()
    runs.texts = {("run-digits-3", path): text for path, text in OLD["texts"].items()}
    return runs


@pytest.fixture
def ledger(tmp_path: Path, runs: Runs) -> Ledger:
    """A ledger after the upgrade, with the same secret."""
    (tmp_path / "secrets.json").write_text(json.dumps({"webhook": "w", "ledger": OLD["secret"], "mlflow": "m"}))
    return Ledger(site(tmp_path), REQUEST, registry=cast("Registry", runs))


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
def test_a_stage_does_not_find_the_result_that_0_1_wrote_for_the_same_records(ledger: Ledger, stage: Stage) -> None:
    assert Attempt(stage=stage, arguments=lambda: {"request": REQUEST}, cache=ledger).recall() is None


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
def test_a_result_of_0_1_is_no_error_even_under_its_own_key(ledger: Ledger, stage: Stage) -> None:
    found = ledger.get(OLD["keys"][stage.name], stage.name, stage.gives)
    assert found is None or isinstance(found, stage.gives)


def test_a_result_of_0_1_is_genuine(ledger: Ledger) -> None:
    """So it is the key that keeps it from being used."""
    found = ledger.get(OLD["keys"]["gate"], "gate", Verdict)
    assert found is not None
    assert found.outcome is Outcome.PASS


@pytest.mark.parametrize("text", ['{"outcome": "pass"}', "{}", "[]", "{", ""])
def test_a_result_that_can_not_be_read_is_made_again(ledger: Ledger, runs: Runs, text: str) -> None:
    """Under the right key: as a build between two releases could have written it."""

    def judge(request: Request) -> Verdict:
        return Verdict.of(())

    stage = Stage(judge)
    name = cache_key.key(stage, {"request": REQUEST})
    envelope = {"key": name, "record": text, "signature": sign(OLD["secret"], name, text)}
    runs.texts["run-digits-3", f"shiplift/records/judge-{name[:16]}.json"] = json.dumps(envelope)
    attempt = Attempt(stage=stage, arguments=lambda: {"request": REQUEST}, cache=ledger)
    for _ in range(2):  # from the registry, then from the home
        assert attempt.recall() is None
    assert attempt.make().failure is None
    again = attempt.recall()
    assert again is not None
    assert again.record == Verdict.of(())


def test_what_0_1_promoted_is_still_known(ledger: Ledger) -> None:
    promotion = ledger.promotion()
    assert promotion is not None
    assert (promotion.model, promotion.version, promotion.package.precision) == ("digits", 3, "fp32")


# --- a release under way ---


def test_on_a_cluster_the_later_pods_of_a_release_have_the_new_package_s_keys(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If their image was replaced under the same name: else a Workflow's pods keep the one they began with."""
    attempts = iter([1, 2])

    def act() -> Outcome:
        if next(attempts) == 1:
            monkeypatch.setattr(cache_key, "package_digest", lambda: "of the next version")
            raise Temporary("the pod was evicted", do="-")
        return Outcome.PASS

    pipeline = release_that(act)
    upgraded, again = engines.argo(pipeline), engines.argo(pipeline)
    assert [(run.name, run.outcome, run.cached) for run in upgraded.stages] == [
        ("measure", "ok", False),
        ("judge", "ok", False),
        ("promote", "ok", False),
    ]
    assert [(run.name, run.outcome, run.cached) for run in again.stages] == [
        ("measure", "ok", False),
        ("judge", "ok", True),
        ("promote", "ok", False),
    ]
    assert [old.key == new.key for old, new in zip(upgraded.stages, again.stages, strict=True)] == [False, True, True]
    assert upgraded.failure is again.failure is None


def test_on_a_machine_a_release_that_the_upgrade_stopped_begins_again_under_new_keys(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = iter([True, False])

    def act() -> Outcome:
        if next(outcomes):
            raise Cancelled("stopped by SIGTERM", do="-")  # `shiplift down`
        return Outcome.PASS

    pipeline = release_that(act)
    stopped = engines.local(pipeline)
    monkeypatch.setattr(cache_key, "package_digest", lambda: "of the next version")
    ended = engines.local(pipeline)
    assert [(run.name, run.outcome) for run in stopped.stages] == [("measure", "ok"), ("judge", "cancelled")]
    assert [(run.name, run.outcome, run.cached) for run in ended.stages] == [
        ("measure", "ok", False),
        ("judge", "ok", False),
        ("promote", "ok", False),
    ]
    assert (ended.failure, ended.verdict and ended.verdict.outcome) == (None, Outcome.PASS)


def test_a_workflow_whose_pods_left_records_of_another_version_is_concluded() -> None:
    """`conclude` of the new version, for a Workflow of the old one that was terminated."""
    outputs = [
        {"name": "packages", "value": '{"of": "another version"}'},
        {"name": "stage_runs", "value": '{"runs": [{"name": "quantize"}, {"name": "package", "outcome": "refused"}]}'},
    ]
    node = {
        "id": "1",
        "type": "Pod",
        "templateName": "optimize",
        "phase": "Failed",
        "startedAt": "2026-01-01T00:00:00Z",
        "outputs": {"exitCode": "3", "parameters": outputs},
    }
    workflow = {
        "metadata": {"name": "release-1", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {},
        "status": {"nodes": {"1": node}},
    }
    ending = ending_of(workflow, RELEASE)
    assert ending.verdict is None
    assert ending.failure is not None
    assert ("the Workflow ended" in ending.failure.what, ending.failure.do) == (
        True,
        "See `argo get`, then `shiplift rerun` it.",
    )
