"""The main job: a registration alone leads to a champion, or to a refusal with reasons."""

import gzip
import json
from pathlib import Path

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton

import shiplift
from shiplift.pipelines.commands.releases import report_pages
from shiplift.pipelines.engines.answers import ModelVersions
from shiplift.pipelines.engines.replay import replay
from shiplift.runtime.base.secrets import load_secrets, sign
from shiplift.runtime.records.verdict import Outcome
from shiplift.runtime.serving.machine.served import ServedPackage
from shiplift.runtime.serving.triton.config import parse
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.ledger import PROMOTION, Ledger
from shiplift.runtime.store.registry.terms import CHALLENGER, CHAMPION, PREVIOUS
from tests.integration.conftest import FAST, JUDGED, Lab, Released, digits, request, until


def test_a_registration_alone_leads_to_a_champion(lab: Lab, champion: Released) -> None:
    model, version, report = champion.model, champion.version, champion.report
    assert (report.verdict, report.exit_code, report.alias) == (Outcome.PASS, 0, CHAMPION)
    assert [stage.name for stage in report.stages] == [
        "admit",
        "find_champion",
        "find_targets",
        "export",
        "quantize",
        "package",
        "tune",
        "deploy",
        "load_test",
        "shadow",
        "gate",
        "promote",
    ]
    assert {stage.outcome for stage in report.stages} == {"ok"}
    assert lab.registry.alias(model, CHAMPION) == version
    assert lab.registry.alias(model, CHALLENGER) == 0

    config = parse((lab.home / "production" / "models" / model / "config.pbtxt").read_text())
    served = ServedPackage.model_validate_json((lab.home / "production" / "served" / f"{model}.json").read_text())
    assert config.parameters["memory_mb"].string_value == str(served.package.limits.memory_mb)  # what tuning saw

    images, _ = digits()
    expected = lab.classifier().predict(images[:5])
    answer = lab.ask(model, {"input": images[:5]})
    assert answer["version"] == version
    assert [row[0] for row in answer["outputs"]["label"]] == expected.tolist()


@pytest.mark.slow
def test_of_two_targets_one_serves_and_the_release_says_which(lab: Lab) -> None:
    two = "targets: [{name: second, precisions: [fp32]}, {name: first, precisions: [fp32]}]\n"
    version = lab.log_classifier("two-targets", spec=FAST + two)
    report = lab.wait("two-targets", version)
    assert (report.exit_code, report.serving_target, report.not_served) == (0, "second", ("first",))
    (warning,) = [check for check in report.checks if check.name == "targets"]
    assert (warning.severity, warning.measured, warning.limit) == ("warn", 1, 2)
    note = "target second is deployed and judged, first is not"
    assert note in warning.reason
    assert note in Path(report.report).read_text()
    assert note in lab.registry.version("two-targets", version).tags["shiplift.reason"]
    events = [(event.stage, event.message) for event in lab.events("two-targets", version)]
    index = next(index for index, event in enumerate(events) if "the first that can run serves" in event[1])
    assert events[index][0] == "find_targets"
    assert index < min(later for later, event in enumerate(events) if event[0] == "quantize")
    assert any(stage == "deploy" and note in message for stage, message in events)


def test_plain_clients_need_no_library_of_ours(lab: Lab, champion: Released) -> None:
    model, version, report = champion.model, champion.version, champion.report
    assert report.endpoint is not None
    images, _ = digits()
    served = shiplift.discover(model, home=lab.home)
    assert (served.grpc, served.version, served.path) == (report.endpoint.grpc, version, f"/v2/models/{model}")
    assert (
        served.infer({"input": images[:2]})["label"].ravel().tolist() == lab.classifier().predict(images[:2]).tolist()
    )
    body = {
        "inputs": [{"name": "input", "shape": [1, 64], "datatype": "FP32", "data": images[0].tolist()}],
        "outputs": [{"name": "label"}],
    }
    over_http = httpx.post(f"{report.endpoint.http}/infer", json=body, trust_env=False).json()
    client = triton.InferenceServerClient(report.endpoint.grpc)
    image = triton.InferInput("input", [1, 64], "FP32")
    image.set_data_from_numpy(images[:1])
    over_grpc = client.infer(model, [image]).as_numpy("label")
    assert over_http["model_version"] == str(version)
    assert (
        over_http["outputs"][0]["data"] == over_grpc.ravel().tolist() == lab.classifier().predict(images[:1]).tolist()
    )


def test_the_registry_has_the_whole_story(lab: Lab, champion: Released) -> None:
    model, version, report = champion.model, champion.version, champion.report
    info = until(lambda: (i := lab.registry.version(model, version)).tags.get("shiplift.outcome") and i)
    assert info.tags["shiplift.outcome"] == "promoted"
    assert info.tags["shiplift.verdict"] == "pass"
    folder = f"shiplift/releases/{report.release}"
    stored = json.loads(lab.registry.read_text(info.run_id, f"{folder}/release.json") or "{}")
    assert stored["checks"] == [check.model_dump(mode="json") for check in report.checks]
    page = lab.registry.read_text(info.run_id, f"{folder}/report.html") or ""
    assert "Latency by concurrency" in page
    (answers,) = (check for check in report.checks if check.name == "answers")
    assert "16 clients" in answers.reason
    assert "Asked again of the packaged server" in page
    status = lab.engine.status(model)
    assert isinstance(status, ModelVersions)
    assert str(status.proof) == answers.reason
    assert "config.pbtxt" in page
    assert "dynamic_batching" in (lab.registry.read_text(info.run_id, f"{folder}/config.pbtxt") or "")


def test_a_second_rerun_finds_everything_and_a_changed_budget_reruns_the_gate(lab: Lab, champion: Released) -> None:
    model, version = champion.model, champion.version
    rerun = lab.order(model, version, again=True)
    fresh = {stage.name for stage in rerun.stages if not stage.cached}
    assert rerun.exit_code == 0
    assert fresh == {"find_champion", "find_targets", "promote"}

    stricter = JUDGED.replace("slo: {", "slo: {memory_mb: 1, ")
    refused = lab.order(model, version, stricter)
    fresh = {stage.name for stage in refused.stages if not stage.cached}
    assert fresh == {"admit", "find_champion", "find_targets", "gate"}
    assert refused.exit_code == 20
    assert [check.name for check in refused.checks if check.verdict is Outcome.FAIL] == ["memory"]
    assert lab.registry.alias(model, CHAMPION) == version


@pytest.mark.slow
def test_a_version_copied_to_another_model_is_released_without_a_second_scan(lab: Lab) -> None:
    """As teams do that keep a model for each stage of their own: `copy_model_version` gives it the same files."""
    version = lab.log_classifier("dev.copied")
    assert lab.wait("dev.copied", version).exit_code == 0
    copy = lab.mlflow.MlflowClient().copy_model_version(f"models:/dev.copied/{version}", "prod.copied")
    report = lab.wait("prod.copied", int(copy.version))
    assert report.exit_code == 0
    messages = {event.message for event in lab.releases.events(report.release)[0] if event.stage == "admit"}
    assert "using the earlier scan of the same files" in messages
    assert "scanning the model's files" not in messages
    images = {"input": digits()[0][:3]}
    assert lab.ask("prod.copied", images) | {"model": "dev.copied"} == lab.ask("dev.copied", images)


@pytest.mark.slow
def test_a_past_release_is_judged_again_by_another_policy_without_running_it(lab: Lab, tmp_path: Path) -> None:
    spec = FAST.replace("slo: {", "slo: {p99_ms: 5000, ").replace("open_loop_s: 0", "open_loop_s: 8")
    first = lab.log_classifier("judged", spec=spec)
    assert lab.wait("judged", first).exit_code == 0
    second = lab.log_classifier("judged", spec=spec)
    report = lab.wait("judged", second)
    assert report.exit_code == 0

    unchanged = replay(lab.engine, "judged", "same.yaml", "")
    assert [(release.version, release.after, release.flips) for release in unchanged.releases] == [
        (second, Outcome.PASS, ()),
        (first, Outcome.PASS, ()),
    ]
    assert unchanged.releases[0].checks == report.checks
    rules = "policy: {rules: [{metric: memory_mb, comparison: <=, limit: 1 MiB}, {metric: max_rate_per_s, "
    stricter = replay(lab.engine, f"judged/{second}", "stricter.yaml", rules + "comparison: '>=', limit: 1/s}]}")
    assert {flip.name: flip.after for flip in stricter.releases[0].flips} == {
        "memory_mb": "fail",
        "max_rate_per_s": "pass",
    }

    story = lab.engine.story(report)
    load = story.load_report
    assert load is not None
    assert load.raw is not None
    lines = gzip.decompress(ArtifactStore(lab.site.artifacts_uri).read(load.raw)).decode().splitlines()
    phases = {json.loads(line)["phase"] for line in lines}
    assert phases == {"warm-up", "sweep", "open loop", "comparison", "champion's sweep"}
    assert all(len(json.loads(line)["windows"]) == 3 for line in lines)
    assert load.comparison is not None
    assert len(load.comparison.noise_p99_ratios) == 2
    page = Path(report.report).read_text()
    assert "Latency by arrival rate" in page
    assert report_pages.comparison(lab.engine, tmp_path, f"judged/{first}", f"judged/{second}").is_file()
    row = report_pages.index(lab.engine, tmp_path).read_text().split("<strong>judged</strong>")[1]
    assert row.split('data-label="champion">')[1].startswith(f"{second}<")
    assert "p99 within 5000 ms" in row.split("</tr>")[0]


@pytest.mark.slow
def test_a_version_less_accurate_than_the_champion_costs_no_search(lab: Lab) -> None:
    first = lab.log_classifier("less-accurate", spec=FAST)
    assert lab.wait("less-accurate", first).exit_code == 0
    strict = FAST.replace("score: 1", "score: 0.01")
    report = lab.wait("less-accurate", lab.log_classifier("less-accurate", samples=25, spec=strict))
    assert (report.verdict, report.exit_code, report.stages[-1].name) == (Outcome.FAIL, 20, "package")
    (failing,) = [check for check in report.checks if check.verdict is Outcome.FAIL]
    assert failing.name == "accuracy against the champion"
    assert f"worse than version {first}'s" in report.reason


OWN_METRIC = """
import numpy as np

def score(labels, predictions):
    classes = predictions["label"] if isinstance(predictions, dict) else predictions
    return float(np.mean(np.abs(classes.reshape(-1) - labels)))
"""


@pytest.mark.slow
def test_a_version_is_judged_by_its_author_s_own_metric(lab: Lab) -> None:
    spec = FAST + "admission: {python: sandbox}\ndata: {metric: {python: distance.py, better: smaller}}\n"
    own = {"shiplift/distance.py": OWN_METRIC}
    good = lab.log_classifier("own-metric", spec=spec + "quality: {min_score: 1}", texts=own)
    report = lab.wait("own-metric", good)
    assert report.exit_code == 0, report.reason
    (check,) = [check for check in report.checks if check.name == "distance.py"]
    assert check.measured is not None
    assert check.low is not None
    assert check.high is not None
    assert check.low < check.measured < check.high < 1
    assert f"{check.low:.4g}" in Path(report.report).read_text()
    bad = lab.log_classifier("own-metric", samples=25, spec=spec + "quality: {min_score: 0.1}", texts=own)
    report = lab.wait("own-metric", bad)
    assert (report.verdict, report.exit_code) == (Outcome.FAIL, 20)
    assert "is over the budget of 0.1" in report.reason


def test_a_worse_version_is_refused_with_its_reason_and_the_champion_stays(lab: Lab, champion: Released) -> None:
    model, first = champion.model, champion.version
    second = lab.log_classifier(model, samples=25, spec=JUDGED)
    report = lab.wait(model, second)

    assert (report.verdict, report.exit_code, report.alias) == (Outcome.FAIL, 20, "")
    failing = [check for check in report.checks if check.verdict is Outcome.FAIL]
    assert [check.name for check in failing] == ["accuracy"]
    assert "under the budget of 0.85" in report.reason
    assert report.stages[-1].name == "package"  # nothing was measured needlessly
    assert lab.registry.alias(model, CHAMPION) == first
    images, _ = digits()
    assert lab.ask(model, {"input": images[:1]})["version"] == first
    tags = until(lambda: (t := lab.registry.version(model, second).tags).get("shiplift.outcome") and t)
    assert tags["shiplift.outcome"] == "refused"
    assert "0.85" in tags["shiplift.reason"]


@pytest.mark.slow
def test_two_versions_registered_together_end_with_the_newer_one(lab: Lab) -> None:
    older, newer = lab.log_classifier("together"), lab.log_classifier("together", samples=1000)
    reports = [lab.wait("together", version) for version in (older, newer)]
    assert [report.exit_code for report in reports] == [0, 0]
    assert lab.registry.alias("together", CHAMPION) == newer
    assert lab.registry.alias("together", PREVIOUS) == older
    images, _ = digits()
    assert lab.ask("together", {"input": images[:1]})["version"] == newer


def test_a_forged_promotion_is_not_believed(lab: Lab, champion: Released) -> None:
    model, version = champion.model, champion.version
    info = lab.registry.version(model, version)
    envelope = json.loads(lab.registry.read_text(info.run_id, PROMOTION) or "{}")
    altered = envelope["record"].replace('"precision":"', '"precision":"int8","x":"')
    lab.registry.write_text(info.run_id, PROMOTION, json.dumps({"record": altered, "signature": envelope["signature"]}))
    ledger = Ledger(lab.site, request(model, version))
    assert ledger.promotion() is None
    lab.registry.write_text(info.run_id, PROMOTION, json.dumps(envelope))
    assert ledger.promotion() is not None
    right = sign(load_secrets(lab.home).ledger, f"promotion {model}/{version}", envelope["record"])
    assert right == envelope["signature"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a b", "Ziffern-ü", "x" * 200, "--help"])
def test_names_that_are_hard_to_serve_are_served(lab: Lab, name: str) -> None:
    version = lab.log_classifier(name)
    report = lab.wait(name, version)
    assert report.exit_code == 0
    assert report.endpoint is not None
    assert httpx.get(f"{report.endpoint.http}/ready", trust_env=False).status_code == 200
    images, _ = digits()
    assert lab.ask(name, {"input": images[:1]})["version"] == version
    assert np.asarray(images[:1]).shape == (1, 64)
