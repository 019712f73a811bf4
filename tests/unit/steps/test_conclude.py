"""The last stage with a registry that is down: the release still ends, and its page says how."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from shiplift.pipelines.release import RELEASE
from shiplift.runtime.host.processes import alive, free_port, identify
from shiplift.runtime.records.failure import Failure
from shiplift.runtime.records.measurement import Tuned
from shiplift.runtime.records.proof import Form, ServedProof
from shiplift.runtime.records.release import Ending, ReleaseReport, StageRun
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.records.verdict import Outcome, Verdict
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.steps.conclude import conclude
from tests.unit.examples import check, deployment, exported, load_report, package, site, trial

REQUEST = Request(model="digits", version=3)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")


def concluded(home: Path, trigger: Trigger | None = None, **ending: Any) -> ReleaseReport:
    defaults: dict[str, Any] = {
        "release": "digits-3-0123456789",
        "started_at": 1000.0,
        "stages": (),
        "givers": RELEASE.givers,
    }
    where = site(home, registry_uri=f"http://127.0.0.1:{free_port()}")
    return conclude(where, REQUEST, trigger or Trigger(), Ending(**defaults | ending))


def failure(kind: str, code: int) -> Failure:
    return Failure(kind=kind, exit_code=code, what="it broke", do="Mend it.")


@pytest.mark.parametrize(
    ("ending", "outcome", "code", "reason"),
    [
        ({"stages": (StageRun(name="promote"),), "verdict": Verdict.of((check(),))}, "pass", 0, "every check passed"),
        ({"verdict": Verdict.of((check(Outcome.FAIL, reason="slow"),))}, "fail", 20, "p99: slow"),
        ({"verdict": Verdict.of((check(Outcome.INCONCLUSIVE, reason="noisy"),))}, "inconclusive", 21, "p99: noisy"),
        ({"failure": failure("NotAdmitted", 30)}, "fail", 30, "it broke. Mend it."),
        ({"failure": failure("ZeroDivisionError", 70)}, "inconclusive", 70, "it broke. Mend it."),
        ({"failure": failure("Temporary", 75)}, "inconclusive", 75, "it broke. Mend it."),
        ({"failure": failure("Cancelled", 130)}, "inconclusive", 130, "it broke. Mend it."),
        ({"verdict": Verdict.of((check(),))}, "inconclusive", 70, "it did not finish"),
        (
            {
                "stages": (StageRun(name="promote", outcome="failed"),),
                "verdict": Verdict.of((check(),)),
                "failure": failure("PromotionConflict", 44),
            },
            "inconclusive",
            44,
            "it broke. Mend it.",
        ),
    ],
)
def test_however_a_release_ended_it_has_a_verdict_an_exit_code_and_a_reason(
    tmp_path: Path, ending: dict[str, Any], outcome: str, code: int, reason: str
) -> None:
    report = concluded(tmp_path, **ending)
    assert (str(report.verdict), report.exit_code, report.reason) == (outcome, code, reason)
    promoted = code == 0
    assert (report.alias, report.endpoint is not None) == ("champion" if promoted else "", promoted)
    page = Path(report.report).read_text()
    assert reason in page


def test_the_page_lies_with_the_release(tmp_path: Path) -> None:
    report = concluded(tmp_path, failure=failure("NotAdmitted", 30))
    assert Path(report.report) == tmp_path / "releases" / "digits-3-0123456789" / "report.html"


def test_a_page_that_can_not_be_made_does_not_change_how_the_release_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def render(*_: object) -> str:
        raise KeyError("<no such field>")

    monkeypatch.setattr("shiplift.runtime.gates.page.render", render)
    report = concluded(tmp_path, stages=(StageRun(name="promote"),), verdict=Verdict.of((check(),)))
    assert (str(report.verdict), report.alias) == ("pass", "champion")
    page = Path(report.report).read_text()
    assert "every check passed" in page
    assert "&lt;no such field&gt;" in page


def test_what_finished_stages_gave_is_in_the_page(tmp_path: Path) -> None:
    key = "1" * 64
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / f"{key}.json").write_text(load_report(notes=("measured at night",)).model_dump_json())
    report = concluded(tmp_path, stages=(StageRun(name="load_test", key=key),))
    assert "measured at night" in Path(report.report).read_text()


def test_the_report_says_which_target_serves_and_which_do_not(tmp_path: Path) -> None:
    key = "3" * 64
    store = ArtifactStore((tmp_path / "artifacts").as_uri())
    (tmp_path / "tree").mkdir()
    deployed = deployment(target="fast", repository=store.put_tree(tmp_path / "tree"))
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / f"{key}.json").write_text(deployed.model_dump_json())
    tuned = tuple(
        StageRun(name="tune", target=name, outcome=how)
        for name, how in (("gpu", "skipped"), ("fast", "ok"), ("spare", "ok"))
    )
    report = concluded(tmp_path, stages=(*tuned, StageRun(name="deploy", key=key)))
    assert (report.serving_target, report.not_served) == ("fast", ("gpu", "spare"))
    assert report.targets_note.startswith("target fast is deployed and judged, gpu, spare are not")
    assert report.targets_note in Path(report.report).read_text()
    early = concluded(tmp_path, stages=tuned)
    assert (early.serving_target, early.not_served, early.targets_note) == ("", (), "")


def test_the_report_says_in_which_form_a_model_is_served_and_why_not_in_another(tmp_path: Path) -> None:
    key = "4" * 64
    forms = (Form(name="FP32 graph", dropped="row 3 differs."), Form(name="exact trees", guarded="'age': no NaN"))
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / f"{key}.json").write_text(exported(forms=forms).model_dump_json())
    report = concluded(tmp_path, stages=(StageRun(name="export", key=key),))
    assert report.forms == forms
    assert report.served_by == "Served by: exact trees, because FP32 graph was dropped: row 3 differs."
    assert report.served_by in Path(report.report).read_text()
    assert report.guarded_by == "Guarded: other values than these get an error: 'age': no NaN."
    assert (concluded(tmp_path).served_by, concluded(tmp_path).guarded_by) == ("", "")


def test_the_report_says_how_long_this_release_proved(tmp_path: Path) -> None:
    served = ServedProof(asked=(), settings=(), clients=16, seconds=2)
    tuned = Tuned(target="t", package=package(proof=served), best=trial(), trials=(trial(),))
    (tmp_path / "records").mkdir()
    for key, record in (("5" * 64, exported(proof_seconds=1.5)), ("6" * 64, tuned)):
        (tmp_path / "records" / f"{key}.json").write_text(record.model_dump_json())
    export, tune = StageRun(name="export", key="5" * 64), StageRun(name="tune", key="6" * 64)
    assert concluded(tmp_path, stages=(export, tune)).proof_seconds == 3.5
    assert concluded(tmp_path, stages=(export.model_copy(update={"cached": True}), tune)).proof_seconds == 2
    assert concluded(tmp_path).proof_seconds == 0


def test_a_package_whose_bytes_are_gone_does_not_keep_the_release_from_ending(tmp_path: Path) -> None:
    key = "2" * 64
    (tmp_path / "records").mkdir()
    tuned = Tuned(target="t", package=package(), best=trial(), trials=(trial(),))
    (tmp_path / "records" / f"{key}.json").write_text(tuned.model_dump_json())
    assert concluded(tmp_path, stages=(StageRun(name="tune", key=key),)).exit_code == 70


def test_staging_is_ended_with_its_server(tmp_path: Path) -> None:
    staging = tmp_path / "staging" / "digits-3"
    staging.mkdir(parents=True)
    with subprocess.Popen(["sleep", "600"]) as server:
        process = identify(server.pid)
        (staging / "process.json").write_text(process.model_dump_json())
        concluded(tmp_path)
        server.kill()
    assert not alive(process)
    assert not staging.exists()


def test_times_are_counted_from_whoever_asked(tmp_path: Path) -> None:
    asked = concluded(tmp_path, Trigger(requested_at=500.0), stages=(StageRun(name="tune", measured_seconds=100),))
    assert asked.since_request_seconds == pytest.approx(asked.seconds + 500, abs=1)
    assert asked.overhead_seconds == pytest.approx(asked.since_request_seconds - 100, abs=1)
    nobody = concluded(tmp_path)
    assert nobody.since_request_seconds == pytest.approx(nobody.seconds, abs=1)


def test_the_report_is_the_public_json(tmp_path: Path) -> None:
    report = concluded(tmp_path, failure=failure("NotAdmitted", 30))
    body = json.loads(report.model_dump_json())
    assert list(body)[:7] == ["model", "version", "verdict", "alias", "endpoint", "stages", "checks"]
