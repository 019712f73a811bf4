"""The Argo side of RELEASE: what is rendered, and that a pod obeys the same rules as engine 1."""

import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from shiplift.pipelines import pods
from shiplift.pipelines.engines.argo.ending import ending_of
from shiplift.pipelines.engines.argo.pod import __main__ as pod_main
from shiplift.pipelines.engines.argo.pod import call as pod_call
from shiplift.pipelines.engines.argo.pod import messages
from shiplift.pipelines.engines.argo.pod.call import Call, parse
from shiplift.pipelines.engines.argo.pod.parameters import MAX_RECORD_BYTES, write
from shiplift.pipelines.engines.argo.pod.walk import run
from shiplift.pipelines.engines.argo.template_settings import Size, TemplateSettings
from shiplift.pipelines.graph import Placement, Stage
from shiplift.pipelines.release import PODS, RELEASE
from shiplift.runtime.base import libyaml
from shiplift.runtime.base.errors import ArtifactCorrupt, Cancelled, Temporary, UsageError
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.failure import Failure
from shiplift.runtime.records.measurement import Tuned
from shiplift.runtime.records.precision import Slice
from shiplift.runtime.records.release import StageRun, StageRuns
from shiplift.runtime.records.request import Request
from shiplift.runtime.records.site import Cluster, GatewayRef, Site
from shiplift.runtime.records.verdict import Outcome, Verdict
from shiplift.runtime.store.ledger import Ledger
from shiplift.runtime.store.registry.client import Registry
from tests.unit.examples import Golden, check, package, site, trial
from tests.unit.runtime.store.test_ledger import Runs

REQUEST = Request(model="digits", version=3)


def settings(**changes: Any) -> TemplateSettings:
    cluster = Cluster(
        namespace="shiplift",
        serving_namespace="shiplift-serving",
        server_image="shiplift-server:1",
        gateway=GatewayRef(name="shiplift", namespace="shiplift-serving"),
    )
    where = Site(
        home="/work",
        registry_uri="http://mlflow.shiplift:5000",
        server_environment="/opt/triton",
        artifacts_uri="mlflow-artifacts://mlflow.shiplift:5000/shiplift",
        place=cluster,
    )
    return TemplateSettings(namespace="shiplift", image="shiplift-pipeline:1", site=where, **changes)


def templates(wanted: TemplateSettings) -> list[str]:
    from shiplift.pipelines.engines.argo.templates import templates  # it loads Hera, which takes a second

    return templates(wanted)


_RENDERED: dict[str, dict[str, Any]] = {}


def rendered(**changes: Any) -> dict[str, Any]:
    """The templates by name; they are made once, and only read."""
    key = repr(changes)
    if key not in _RENDERED:
        bodies = libyaml.load_all("---\n".join(templates(settings(**changes))))
        _RENDERED[key] = {body["metadata"]["name"]: body["spec"] for body in bodies}
    return _RENDERED[key]


def test_the_templates_are_the_golden_ones(golden: Golden) -> None:
    golden("workflowtemplates.yaml", "---\n".join(templates(settings())))


def test_argo_itself_finds_nothing_wrong(tmp_path: Path) -> None:
    argo = shutil.which("argo")
    if argo is None:
        pytest.skip("there is no `argo` on this machine")
    (tmp_path / "templates.yaml").write_text("---\n".join(templates(settings())))
    done = subprocess.run([argo, "lint", "--offline", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def by_name(**changes: Any) -> dict[str, Any]:
    """The templates of a release by name."""
    return {template["name"]: template for template in rendered(**changes)["release"]["templates"]}


def test_no_task_passes_a_parameter_twice() -> None:
    """Argo refuses such a Workflow, but only when it starts."""
    passed = [
        [parameter["name"] for parameter in task.get("arguments", {}).get("parameters", [])]
        for spec in rendered().values()
        for template in spec["templates"]
        for task in template.get("dag", {}).get("tasks", [])
    ]
    assert passed
    assert [names for names in passed if len(set(names)) < len(names)] == []


def test_stages_that_may_share_a_pod_do() -> None:
    stages = {
        name: template["metadata"]["labels"]["shiplift.dev/stages"]
        for name, template in by_name().items()
        if "container" in template
    }
    assert stages == {
        "prepare": "admit.find_targets.export.quantize.package.tune",
        "optimize": "quantize.package.tune",
        "tune": "tune",
        "find-champion": "find_champion",
        "deliver": "deploy.load_test.shadow.gate.promote",
        "conclude": "conclude",
    }


def test_a_pod_takes_what_its_stages_lack_and_gives_the_records_of_each() -> None:
    templates = by_name()
    for shared in pods.flat(PODS):
        template = templates[shared.name.replace("_", "-")]
        given = {parameter["name"] for parameter in template["outputs"]["parameters"]}
        assert {parameter["name"] for parameter in template["inputs"]["parameters"]} - {"stages"} == set(shared.takes)
        assert given == {*shared.leaves, "stage_runs", "failure"}
        for stage in shared.stages:
            assert set(stage.takes) <= {*shared.takes, *given}
            assert stage.gives.parameter() in given


def test_a_target_that_is_measured_elsewhere_gives_the_account_for_that_to_one_stage_alone() -> None:
    templates = by_name()
    assert (templates["tune"]["serviceAccountName"], templates["tune"]["automountServiceAccountToken"]) == (
        "shiplift-tune",
        True,
    )
    assert "podSpecPatch" not in templates["tune"]  # it runs anywhere
    assert "serviceAccountName" not in templates["optimize"]
    optimize, tune = templates["each-target"]["dag"]["tasks"]
    elsewhere = "filter(jsonpath(inputs.parameters.fleet, '$.targets'), {#.name == inputs.parameters.item})[0].server"
    stages = {item["name"]: item["value"] for item in optimize["arguments"]["parameters"]}["stages"]
    assert stages == f"{{{{={elsewhere} == 'nvidia' ? 'quantize+package' : 'quantize+package+tune'}}}}"
    assert tune["when"] == f"{{{{={elsewhere} == 'nvidia'}}}}"


def test_a_fan_out_that_an_earlier_pod_went_on_with_runs_no_pod_of_its_own() -> None:
    templates = by_name()
    assert {word for word in templates["prepare"]["container"]["args"] if "each-target" in word} == {
        "admit+find_targets+export+each-target"
    }
    (tuned,) = [each for each in templates["prepare"]["outputs"]["parameters"] if each["name"] == "tuned"]
    assert tuned["valueFrom"]["default"] == ""
    optimize, _ = templates["each-target"]["dag"]["tasks"]
    assert optimize["when"] == "{{=inputs.parameters.tuned == ''}}"
    (result,) = templates["each-target"]["outputs"]["parameters"]
    assert result["valueFrom"]["expression"].startswith("inputs.parameters.tuned != '' ? inputs.parameters.tuned : ")
    for name in ("prepare", "find-champion"):
        words = templates[name]["container"]["args"]
        assert words[words.index("--attempt") + 1] == "{{workflow.uid}}"


def test_pods_are_restricted_and_only_those_that_need_the_cluster_may_talk_to_it() -> None:
    spec = rendered()["release"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["automountServiceAccountToken"] is False
    containers = [template for template in spec["templates"] if "container" in template]
    for template in containers:
        security = template["container"]["securityContext"]
        assert (security["allowPrivilegeEscalation"], security["readOnlyRootFilesystem"]) == (False, True)
        assert security["capabilities"] == {"drop": ["ALL"]}
    talking = {template["name"] for template in containers if template.get("automountServiceAccountToken")}
    assert talking == {"find-champion", "deliver", "tune", "conclude"}  # it asks what has the traffic
    (prepare,) = [template for template in containers if template["name"] == "prepare"]
    assert prepare["metadata"]["labels"]["shiplift.dev/sandbox"] == "true"
    assert "serviceAccountName" not in prepare


def test_a_container_that_handles_an_author_s_files_has_nothing_to_steal() -> None:
    templates = [template for template in rendered()["release"]["templates"] if "container" in template]
    sandboxed = {
        template["name"]: template for template in templates if "shiplift.dev/sandbox" in template["metadata"]["labels"]
    }
    assert set(sandboxed) == {"prepare", "optimize", "tune"}
    for template in sandboxed.values():
        main, (broker,) = template["container"], template["sidecars"]
        assert "envFrom" not in main
        assert not any("valueFrom" in variable for variable in main["env"])
        shared = {mount["name"] for mount in main["volumeMounts"]} & {mount["name"] for mount in broker["volumeMounts"]}
        assert "ledger" not in {mount["name"] for mount in main["volumeMounts"]}
        assert shared <= {"targets"}  # the catalogue, which nobody can write
        assert broker["args"] == main["args"][: len(broker["args"])]  # it knows what its stage may ask for
        assert main["args"][len(broker["args"]) :] == ["--broker", "here"]
        assert broker["securityContext"] == main["securityContext"]
    for template in templates:
        if template["name"] not in sandboxed:
            assert "sidecars" not in template


def test_no_credentials_are_in_a_template_s_text() -> None:
    for spec in rendered().values():
        assert "PASSWORD" not in json.dumps(spec)


def test_only_temporary_errors_and_lost_pods_are_tried_again() -> None:
    for spec in rendered().values():
        for template in spec["templates"]:
            if "container" in template:
                condition = template["retryStrategy"]["expression"]
                assert condition.startswith(
                    "not (lastRetry.message contains 'longer than the specified deadline') and "
                    "(lastRetry.status == 'Error' or asInt(lastRetry.exitCode) in [75, 130, 143]"
                )
                assert "not (lastRetry.message contains 'OOMKilled')" in condition


def test_a_stage_ends_itself_before_kubernetes_does() -> None:
    for shared in pods.flat(PODS):
        assert by_name()[shared.name.replace("_", "-")]["activeDeadlineSeconds"] > sum(
            stage.at.deadline_s for stage in shared.all_stages
        )


def test_kubernetes_kills_what_ignores_its_end() -> None:
    for spec in rendered().values():
        assert json.loads(spec["podSpecPatch"])["terminationGracePeriodSeconds"] == 30


@pytest.mark.parametrize(
    ("sizes", "largest"),
    [
        ({}, ("500m", "6Gi")),
        ({"export": Size(cpu="3", memory="9Gi")}, ("3", "9Gi")),
        ({"export": Size(cpu="200m", memory="900Mi")}, ("500m", "4Gi")),  # admit's
        ({"admit": Size(cpu="0.7", memory="7000Mi")}, ("0.7", "7000Mi")),
    ],
)
def test_a_pod_is_as_large_as_its_largest_stage(sizes: dict[str, Size], largest: tuple[str, str]) -> None:
    requests = by_name(sizes=sizes)["prepare"]["container"]["resources"]["requests"]
    assert (requests["cpu"], requests["memory"]) == largest


def test_quantize_of_an_nvidia_target_runs_in_the_image_with_its_tools() -> None:
    templates = by_name(gpu_image="shiplift-gpu:1")
    choice = "accelerator') == 'nvidia' ? 'shiplift-gpu:1' : 'shiplift-pipeline:1')}}"
    assert choice in templates["optimize"]["podSpecPatch"]
    assert templates["tune"]["container"]["image"] == "shiplift-pipeline:1"
    assert "image" not in by_name()["optimize"]["podSpecPatch"]


# --- in a pod -------------------------------------------------------------------------------------------------------


class Asked(Record):
    text: str = "abc"


class Answered(Record):
    text: str


def answer(asked: Asked) -> Answered:
    if asked.text == "away":
        raise Temporary("it is away", do="Wait.")
    if asked.text == "stop":
        raise Cancelled("told to stop", do="Go on.")
    return Answered(text=asked.text * (200_000 if asked.text == "long" else 2))


def deaf(asked: Asked) -> Answered:
    """A step with a library in it that catches every `Exception`."""
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
    except Exception:
        return Answered(text="as if nothing had been")
    return Answered(text="not told")


def judge(asked: Asked) -> Verdict:
    return Verdict.of((check(Outcome.FAIL if asked.text == "bad" else Outcome.INCONCLUSIVE, reason="slow"),))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    runs = Runs()
    monkeypatch.setattr(
        pod_call, "Ledger", lambda where, request: Ledger(where, request, registry=cast("Registry", runs))
    )
    return runs


def call(home: Path, step: Any, text: str = "abc", **at: Any) -> Call:
    arguments = {"asked": Asked(text=text), "site": site(home), "request": REQUEST}
    return Call(stages=(Stage(step, Placement(**at)),), out=home / "out", arguments=arguments)


def stage_runs(home: Path) -> StageRuns:
    return StageRuns.model_validate_json((home / "out" / "stage_runs.json").read_text())


def stage_run(home: Path) -> StageRun:
    (run,) = stage_runs(home).runs
    return run


def test_a_stage_writes_what_it_gives_and_how_it_went(tmp_path: Path, runs: Runs) -> None:
    assert run(call(tmp_path, answer)) == 0
    assert json.loads((tmp_path / "out" / "answered.json").read_text()) == {"text": "abcabc"}
    assert (stage_run(tmp_path).outcome, stage_run(tmp_path).cached, len(stage_run(tmp_path).key)) == ("ok", False, 64)


def test_a_finished_stage_is_a_hit_in_the_next_pod(tmp_path: Path, runs: Runs) -> None:
    run(call(tmp_path, answer))
    assert run(call(tmp_path, answer)) == 0
    assert stage_run(tmp_path).cached


def test_a_stage_that_changes_the_world_always_runs(tmp_path: Path, runs: Runs) -> None:
    run(call(tmp_path, answer, keep="never"))
    run(call(tmp_path, answer, keep="never"))
    assert not stage_run(tmp_path).cached


def test_an_effect_is_set_up_again_in_a_pod_only_for_a_stage_that_uses_it(tmp_path: Path, runs: Runs) -> None:
    stages = (Stage(answer, Placement(keep="effect")), Stage(tell, Placement(uses=answer)))
    deploying = replace(call(tmp_path, answer), stages=stages)
    for cached in (False, True):
        assert run(deploying) == 0
        assert [run.cached for run in stage_runs(tmp_path).runs] == [cached, cached]
    runs.texts = {at: text for at, text in runs.texts.items() if "tell" not in at[1]}
    for record in (tmp_path / "records").iterdir():
        record.unlink()
    assert run(deploying) == 0
    assert [(run.name, run.cached) for run in stage_runs(tmp_path).runs] == [("answer", False), ("tell", False)]


@pytest.mark.parametrize(("text", "code", "word"), [("bad", 20, "refused"), ("odd", 21, "inconclusive")])
def test_an_objection_is_an_exit_code_with_its_reason_and_its_record(
    tmp_path: Path, runs: Runs, text: str, code: int, word: str
) -> None:
    assert run(call(tmp_path, judge, text)) == code
    assert (stage_run(tmp_path).outcome, stage_run(tmp_path).message) == (word, "p99: slow")
    assert (tmp_path / "out" / "verdict.json").is_file()
    assert not (tmp_path / "out" / "failure.json").exists()


@pytest.mark.parametrize(("text", "code", "word"), [("away", 75, "failed"), ("stop", 130, "cancelled")])
def test_an_error_is_its_exit_code_and_told(tmp_path: Path, runs: Runs, text: str, code: int, word: str) -> None:
    assert run(call(tmp_path, answer, text)) == code
    assert stage_run(tmp_path).outcome == word
    assert json.loads((tmp_path / "out" / "failure.json").read_text())["exit_code"] == code


def test_a_pod_that_is_told_to_end_ends_whatever_its_step_catches(tmp_path: Path, runs: Runs) -> None:
    assert run(call(tmp_path, deaf)) == 130
    assert (stage_run(tmp_path).outcome, runs.texts) == ("cancelled", {})


def test_a_shielded_stage_is_finished_instead(tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    assert run(call(tmp_path, deaf, shielded=True)) == 0
    assert json.loads((tmp_path / "out" / "answered.json").read_text()) == {"text": "not told"}


def test_a_record_over_the_limit_fails_before_argo_sees_it(tmp_path: Path, runs: Runs) -> None:
    assert run(call(tmp_path, answer, "long")) == 36
    assert "96 KiB" in stage_run(tmp_path).message or str(MAX_RECORD_BYTES) in stage_run(tmp_path).message
    assert not (tmp_path / "out" / "answered.json").exists()


class Told(Record):
    text: str


def tell(answered: Answered) -> Told:
    if answered.text == "awayaway":
        raise Temporary("nobody listens", do="Wait.")
    return Told(text=answered.text.upper())


def group(home: Path, *steps: Any, text: str = "abc", **at: Any) -> Call:
    stages = tuple(Stage(step, Placement(pod="group", **at)) for step in steps)
    return replace(call(home, answer, text), stages=stages)


def test_the_stages_of_a_pod_pass_their_records_on(tmp_path: Path, runs: Runs) -> None:
    assert run(group(tmp_path, answer, tell)) == 0
    assert json.loads((tmp_path / "out" / "answered.json").read_text()) == {"text": "abcabc"}
    assert json.loads((tmp_path / "out" / "told.json").read_text()) == {"text": "ABCABC"}
    report = stage_runs(tmp_path)
    assert [(run.name, run.outcome, run.cached) for run in report.runs] == [
        ("answer", "ok", False),
        ("tell", "ok", False),
    ]
    assert report.under_way == ""


def test_a_stage_has_the_key_that_it_has_in_a_pod_of_its_own(tmp_path: Path, runs: Runs) -> None:
    run(group(tmp_path, answer, tell))
    alone = replace(
        call(tmp_path, tell), arguments=call(tmp_path, tell).arguments | {"answered": Answered(text="abcabc")}
    )
    assert run(alone) == 0
    assert stage_run(tmp_path).cached


def test_a_pod_ends_with_the_first_stage_that_fails_and_says_which(
    tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(messages, "_MESSAGE", tmp_path / "message")
    assert run(group(tmp_path, judge, answer, text="bad")) == 20
    assert [(run.name, run.outcome) for run in stage_runs(tmp_path).runs] == [("judge", "refused")]
    assert not (tmp_path / "out" / "answered.json").exists()
    assert (tmp_path / "message").read_text() == "judge: p99: slow"
    assert "judge: refused after 0.0" in capsys.readouterr().err


def test_a_pod_that_is_tried_again_goes_on_where_it_was(
    tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = group(tmp_path, answer, tell)

    def fail(answered: Answered) -> Told:
        os.kill(os.getpid(), signal.SIGTERM)
        return Told(text="never")

    monkeypatch.setattr(fail, "__name__", "tell")
    assert run(replace(failing, stages=(failing.stages[0], Stage(fail)))) == 130
    assert [(run.name, run.outcome) for run in stage_runs(tmp_path).runs] == [("answer", "ok"), ("tell", "cancelled")]
    assert run(failing) == 0
    assert [(run.name, run.cached) for run in stage_runs(tmp_path).runs] == [("answer", True), ("tell", False)]


def test_a_pod_that_is_lost_has_left_which_stage_was_under_way(tmp_path: Path, runs: Runs) -> None:
    seen = []

    def look(answered: Answered) -> Told:
        seen.append(stage_runs(tmp_path))
        return Told(text="")

    run(group(tmp_path, answer, look))
    (report,) = seen
    assert ([run.name for run in report.runs], report.under_way) == (["answer"], "look")


def test_each_stage_of_a_pod_has_its_own_deadline(tmp_path: Path, runs: Runs) -> None:
    def sleep(answered: Answered) -> Told:
        time.sleep(30)
        return Told(text="")

    late = group(tmp_path, answer, sleep)
    late = replace(late, stages=(late.stages[0], Stage(sleep, Placement(deadline_s=1))))
    assert run(late) == 46
    assert stage_runs(tmp_path).runs[-1].message.startswith("stage sleep took over 1 s")


def test_only_the_shielded_stage_of_a_pod_is(tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    shielded = Stage(deaf, Placement(shielded=True))
    assert run(replace(group(tmp_path, judge, text="odd"), stages=(shielded, Stage(tell)))) == 0
    assert run(replace(group(tmp_path, judge), stages=(Stage(deaf), Stage(tell)))) == 130


def tuned(target: str) -> Tuned:
    """As large as a target's record gets: 32 trials, and as many slices as there may be."""
    parts = tuple(
        Slice(name=f"label={at:034}", score=0.123456789, error=0.0123456789, samples=100) for at in range(100)
    )
    largest = trial(error="x" * 100)
    return Tuned(target=target, package=package(target=target, slices=parts), best=largest, trials=(largest,) * 32)


def test_what_a_hundred_targets_give_fits_into_one_argument_of_the_next_pod(tmp_path: Path, runs: Runs) -> None:
    records = [tuned(f"target-{at}") for at in range(100)]
    assert sum(len(record.model_dump_json()) for record in records) > 20 * MAX_RECORD_BYTES
    texts = []
    for record in records:
        write(tmp_path / "out", record, site(tmp_path))
        texts.append((tmp_path / "out" / "tuned.json").read_text())
    argument = json.dumps(texts)  # as Argo joins them
    assert len(argument) < 128 * 1024
    words = ["--site", site(tmp_path).model_dump_json(), "--serving", "{}", "--rollout", "{}", "--tuned", argument]
    assert parse(["deploy", "--out", str(tmp_path), *words]).arguments["tuned"] == tuple(records)


def test_a_record_in_full_is_taken_too_and_an_altered_one_is_not(tmp_path: Path, runs: Runs) -> None:
    def deployed(text: str) -> Call:
        words = ["--site", site(tmp_path).model_dump_json(), "--serving", "{}", "--rollout", "{}", "--tuned", text]
        return parse(["deploy", "--out", str(tmp_path), *words])

    by_hand = [json.loads(tuned("a").model_dump_json())]
    assert deployed(json.dumps(by_hand)).arguments["tuned"] == (tuned("a"),)
    write(tmp_path / "out", tuned("a"), site(tmp_path))
    text = (tmp_path / "out" / "tuned.json").read_text()
    (blob,) = (file for file in (tmp_path / "artifacts").rglob("*") if file.is_file())
    blob.write_bytes(blob.read_bytes().replace(b"0.95", b"0.99"))
    with pytest.raises(ArtifactCorrupt):
        deployed(json.dumps([text]))


def test_a_stage_whose_record_is_stored_ends_without_an_objection() -> None:
    stored = json.dumps({"$stored": {"sha256": "0" * 64, "size_bytes": 1}})
    workflow = {
        "metadata": {"name": "x", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {},
        "status": {"phase": "Running", "nodes": {"t": node("tune", gives={"tuned": stored})}},
    }
    ending = ending_of(workflow, RELEASE)
    assert ending.verdict is None
    assert [run.name for run in ending.stages] == ["tune"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "there is no stage ''"),
        (["nonsense"], "there is no stage 'nonsense'"),
        (["gate", "--out", "o"], "gate needs --"),
        (["find_champion", "--out", "o", "--site", "{", "--request", "{}"], "find_champion:"),
        (["find_champion", "--out", "o", "--site", "{}", "--request", "{}"], "find_champion:"),
    ],
)
def test_a_wrong_command_line_says_what_is_wrong(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse(words)


@pytest.mark.parametrize(("error", "code"), [(UsageError("odd", do="Fix it."), 64), (ZeroDivisionError("odd"), 70)])
def test_what_ends_a_pod_before_its_stage_is_told_at_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    def wrong(_words: Any) -> Call:
        raise error

    monkeypatch.setattr(pod_main, "parse", wrong)
    monkeypatch.setattr(messages, "_MESSAGE", tmp_path / "message")
    assert pod_main.main() == code
    assert (tmp_path / "message").read_text() == Failure.of(error).message


# --- the ending, from what Argo says --------------------------------------------------------------------------------


def node(stage: str, phase: str = "Succeeded", at: int = 1, **more: Any) -> dict[str, Any]:
    outputs = [{"name": name, "value": value} for name, value in more.pop("gives", {}).items()]
    return {
        "id": f"{stage}-{at}",
        "type": "Pod",
        "templateName": stage,
        "phase": phase,
        "displayName": stage,
        "startedAt": f"2026-01-01T00:00:{at:02}Z",
        "finishedAt": f"2026-01-01T00:00:{at + 5:02}Z",
        "outputs": {"parameters": outputs, **more.pop("outputs", {})},
        **more,
    }


def workflow(*pods: dict[str, Any], spec: Any = None, message: str = "", **marks: str) -> dict[str, Any]:
    return {
        "metadata": {"name": "release-1", "creationTimestamp": "2026-01-01T00:00:00Z", "annotations": marks},
        "spec": spec or {},
        "status": {"nodes": {node["id"]: node for node in pods}, "message": message},
    }


def ran(name: str, **more: Any) -> dict[str, str]:
    return told(StageRun(name=name, **more))


def told(*runs: StageRun, under_way: str = "") -> dict[str, str]:
    return {"stage_runs": StageRuns(runs=runs, under_way=under_way).model_dump_json()}


def test_a_pass_is_a_pass() -> None:
    passed = Verdict.of((check(),)).model_dump_json()
    ending = ending_of(
        workflow(
            node("admit", gives=ran("admit", seconds=2.5, key="k")),
            node("gate", gives=ran("gate") | {"verdict": passed}, at=2),
            node("promote", gives=ran("promote"), at=3),
        ),
        RELEASE,
    )
    assert [run.name for run in ending.stages] == ["admit", "gate", "promote"]
    assert (ending.stages[0].seconds, ending.stages[0].key) == (2.5, "k")
    assert ending.failure is None
    assert ending.verdict is not None
    assert (ending.verdict.outcome, ending.release, ending.started_at) == (Outcome.PASS, "release-1", 1767225600.0)


def test_a_refusal_is_a_verdict_and_no_failure() -> None:
    refused = Verdict.of((check(Outcome.FAIL, reason="slow"),)).model_dump_json()
    gave = ran("gate", outcome="refused") | {"verdict": refused}
    ending = ending_of(workflow(node("gate", "Failed", gives=gave)), RELEASE)
    assert ending.failure is None
    assert ending.verdict is not None
    assert ending.verdict.outcome is Outcome.FAIL


def test_only_the_last_attempt_counts() -> None:
    failed = '{"kind": "Temporary", "exit_code": 75, "what": "away", "do": "Wait."}'
    first = node("admit", "Failed", gives=ran("admit", outcome="failed") | {"failure": failed})
    ending = ending_of(workflow(first, node("admit", at=9, gives=ran("admit")), node("promote", at=20)), RELEASE)
    assert [(run.name, run.outcome) for run in ending.stages] == [("admit", "ok"), ("promote", "ok")]
    assert ending.failure is None


@pytest.mark.parametrize(
    ("more", "kind", "message"),
    [
        ({"outputs": {"exitCode": "137"}, "message": "OOMKilled (exit code 137)"}, "SandboxLimit", "more memory"),
        ({"message": "Pod was active on the node longer than the specified deadline"}, "DeadlineExceeded", "deadline"),
        ({"outputs": {"exitCode": "30"}, "message": "Error (exit code 30)"}, "NotAdmitted", "exit code 30"),
        ({"message": "pod deleted"}, "ShipliftError", "pod deleted"),
    ],
)
def test_a_pod_that_could_not_tell_is_told_of(more: dict[str, Any], kind: str, message: str) -> None:
    ending = ending_of(workflow(node("export", "Failed", **more)), RELEASE)
    assert ending.failure is not None
    assert ending.failure.kind == kind
    assert message in ending.failure.what
    assert [run.outcome for run in ending.stages] == ["failed"]


def test_a_pod_that_kubernetes_ended_at_its_deadline_was_not_cancelled() -> None:
    said = '{"kind": "Cancelled", "exit_code": 130, "what": "the pod was terminated", "do": "Wait."}'
    message = "Pod was active on the node longer than the specified deadline"
    ended = node("quantize", "Failed", message=message, gives=ran("quantize", outcome="cancelled") | {"failure": said})
    ending = ending_of(workflow(ended), RELEASE)
    assert ending.failure is not None
    assert (ending.failure.kind, ending.failure.exit_code) == ("DeadlineExceeded", 46)


def test_a_cancelled_release_says_so_whatever_its_pods_said() -> None:
    ending = ending_of(workflow(node("tune", "Running"), spec={"shutdown": "Stop"}), RELEASE)
    assert ending.failure is not None
    assert (ending.failure.kind, ending.stages[0].outcome) == ("Cancelled", "cancelled")


def test_the_stages_of_a_pod_are_told_apart() -> None:
    runs = (StageRun(name="admit", seconds=2.5, key="k"), StageRun(name="find_targets"), StageRun(name="export"))
    ending = ending_of(
        workflow(node("prepare", gives=told(*runs)), node("promote", at=9, gives=ran("promote"))), RELEASE
    )
    assert [run.name for run in ending.stages] == ["admit", "find_targets", "export", "promote"]
    assert (ending.stages[0].seconds, ending.stages[0].key, ending.failure) == (2.5, "k", None)


def test_a_pod_that_ran_out_of_memory_is_told_of_as_its_stage_under_way() -> None:
    gives = told(StageRun(name="admit"), under_way="export")
    lost = node("prepare", "Failed", gives=gives, outputs={"exitCode": "137"}, message="OOMKilled (exit code 137)")
    ending = ending_of(workflow(lost), RELEASE)
    assert [(run.name, run.outcome) for run in ending.stages] == [("admit", "ok"), ("export", "failed")]
    assert ending.failure is not None
    assert ending.failure.what.startswith("stage export: OOMKilled")
    assert "stages.export.memory" in ending.failure.do


@pytest.mark.parametrize("phase", ["Running", "Pending", "Failed"])
def test_a_pod_that_told_nothing_is_at_its_first_stage(phase: str) -> None:
    (reached,) = ending_of(workflow(node("deliver", phase, message="pod deleted")), RELEASE).stages
    assert (reached.name, reached.outcome) == ("deploy", "failed" if phase == "Failed" else "cancelled")


def test_the_failure_of_a_pod_is_that_of_the_stage_that_failed() -> None:
    failed = '{"kind": "ExportFailed", "exit_code": 31, "what": "no converter", "do": "Add it."}'
    gives = told(StageRun(name="admit"), StageRun(name="export", outcome="failed", message="no converter"))
    ending = ending_of(workflow(node("prepare", "Failed", gives=gives | {"failure": failed})), RELEASE)
    assert [(run.name, run.outcome) for run in ending.stages] == [("admit", "ok"), ("export", "failed")]
    assert ending.failure is not None
    assert ending.failure.what == "no converter"


def test_a_pod_speaks_for_its_own_stages_alone() -> None:
    forged = told(StageRun(name="admit"), StageRun(name="promote"))
    ending = ending_of(workflow(node("prepare", "Failed", gives=forged, message="pod deleted")), RELEASE)
    assert "promote" not in [run.name for run in ending.stages]


def test_a_target_that_is_measured_elsewhere_is_tuned_in_another_pod() -> None:
    target = {"parameters": [{"name": "target", "value": '{"name": "gpu"}'}]}
    optimized = told(StageRun(name="quantize", target="gpu"), StageRun(name="package", target="gpu"))
    pods_ = [node("optimize", gives=optimized, inputs=target), node("tune", "Running", at=9, inputs=target)]
    stages = ending_of(workflow(*pods_), RELEASE).stages
    assert [(run.name, run.target, run.outcome) for run in stages] == [
        ("quantize", "gpu", "ok"),
        ("package", "gpu", "ok"),
        ("tune", "gpu", "cancelled"),
    ]


def test_who_stopped_it_is_told() -> None:
    marks = {"shiplift.dev/stopped-because": "no node matches"}
    ending = ending_of(workflow(spec={"shutdown": "Stop"}, **marks), RELEASE)
    assert ending.failure is not None
    assert (ending.failure.kind, ending.failure.what) == ("ClusterRefused", "no node matches")


def test_the_stages_of_two_targets_are_two() -> None:
    targets = [{"parameters": [{"name": "target", "value": f'{{"name": "{name}"}}'}]} for name in ("cpu-a", "cpu-b")]
    pods = [node("tune", at=at, inputs=inputs) for at, inputs in enumerate(targets, 1)]
    assert [run.target for run in ending_of(workflow(*pods), RELEASE).stages] == ["cpu-a", "cpu-b"]
