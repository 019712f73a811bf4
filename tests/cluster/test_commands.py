"""The commands with `--engine argo` on a real cluster: they need only a kubeconfig, and leave nothing behind.

`tests/integration/test_cluster_commands.py` runs the same commands against a stand-in for the API server's proxy.
"""

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from shiplift.pipelines.discovery import discover
from shiplift.runtime.base.errors import NotFound
from shiplift.runtime.host.processes import free_port
from shiplift.runtime.store.registry.terms import CHAMPION
from tests.cluster.conftest import ROOT, Lab, stage_runs, until
from tests.cluster.test_release import SPEC, ended, pod_of, promoted, workflow_of
from tests.integration.conftest import digits

MODEL = "asked"
COMMAND = (sys.executable, "-m", "shiplift.pipelines.commands.app")


class Shiplift:
    """The command, with a fresh home."""

    def __init__(self, lab: Lab, home: Path) -> None:
        self._lab = lab
        self.home = home

    def arguments(self, *arguments: str) -> list[str]:
        return ["--home", str(self.home), *arguments, "--engine", "argo", "--namespace", self._lab.namespace]

    def __call__(self, *arguments: str, code: int = 0) -> str:
        done = self._lab.kube.shiplift(*self.arguments(*arguments), check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self(*arguments, "--json", code=code))


@pytest.fixture
def shiplift(lab: Lab, tmp_path: Path) -> Shiplift:
    return Shiplift(lab, tmp_path / "home")


@pytest.fixture(scope="module")
def version(lab: Lab) -> int:
    """A promoted version."""
    version = lab.log_classifier(MODEL, spec=SPEC.replace("slo: {", "slo: {p99_ms: 5000, "))
    promoted(lab, MODEL, version)
    return version


def test_its_report_is_read_from_the_registry_and_its_page_saved_here(shiplift: Shiplift, version: int) -> None:
    report = shiplift.json("report", f"{MODEL}/{version}")
    assert (report["verdict"], report["alias"], report["version"]) == ("pass", CHAMPION, version)
    page = Path(report["report"])
    assert page.parent == shiplift.home / "reports"
    assert "Latency by concurrency" in page.read_text()
    assert f"PASS  {MODEL} version {version}" in shiplift("report", f"{MODEL}/{version}")
    both = Path(shiplift("report", f"{MODEL}/{version}", "--compare", f"{MODEL}/{version}").strip())
    assert "p99 by concurrency" in both.read_text()
    row = Path(shiplift("report", "--index").strip()).read_text().split(f"<strong>{MODEL}</strong>")[1]
    assert row.split('data-label="champion">')[1].startswith(f"{version}<")
    assert "p99 within 5000 ms" in row.split("</tr>")[0]
    shiplift("report", f"{MODEL}/99", code=66)


def test_its_policy_is_tried_without_running_anything(
    lab: Lab, shiplift: Shiplift, version: int, tmp_path: Path
) -> None:
    before = len(lab.workflows())
    policy = tmp_path / "stricter.yaml"
    policy.write_text("slo: {memory_mb: 1}")
    replay = shiplift.json("gate", MODEL, "--policy", str(policy), code=20)
    assert (replay["flipped"], replay["verified"], replay["releases"][0]["version"]) == (1, False, version)
    policy.write_text("slo: {memory_mb: 5000}")
    assert "pass, as before" in shiplift("gate", f"{MODEL}/{version}", "--policy", str(policy))
    assert len(lab.workflows()) == before


def test_production_answers_a_file(shiplift: Shiplift, version: int, tmp_path: Path) -> None:
    images, labels = digits()
    np.savez(tmp_path / "request.npz", input=images[8:16])  # FAST serves batches of up to 8
    answer = shiplift.json("infer", MODEL, "--input", str(tmp_path / "request.npz"))
    assert (answer["model"], answer["version"]) == (MODEL, version)
    right = [row[0] for row in answer["outputs"]["label"]] == labels[8:16]
    assert np.mean(right) > 0.9
    shiplift("infer", "nobody-serves-this", "--input", str(tmp_path / "request.npz"), code=66)


def test_logs_are_those_of_stages_and_of_parts(lab: Lab, shiplift: Shiplift, version: int) -> None:
    ended(lab, workflow_of(lab, MODEL, version))
    shiplift("rerun", f"{MODEL}/{version}")
    with subprocess.Popen(
        [*COMMAND, *shiplift.arguments("logs", f"{MODEL}/{version}", "-f")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as following:
        ended(lab, workflow_of(lab, MODEL, version))
        out, err = following.communicate(timeout=60)  # it ends with the release
    assert following.returncode == 0, err
    assert out == "" or {line.split()[0] for line in out.splitlines()} <= STAGES
    assert {line.split()[0] for line in shiplift("logs", f"{MODEL}/{version}", "-n", "1000").splitlines()} <= STAGES
    for part in ("reconciler", "receiver", "mlflow"):
        lines = shiplift("logs", part, "-n", "5").splitlines()
        assert len(lines) <= 5
        assert all(line.startswith(f"{part}-") for line in lines)
    shiplift("logs", "no-such-model/1", code=66)


def test_the_live_page_is_shown_with_a_kubeconfig_and_by_a_pod_on_which_nobody_can_act(
    lab: Lab, shiplift: Shiplift, version: int
) -> None:
    with subprocess.Popen(
        [*COMMAND, *shiplift.arguments("open", MODEL, "--print", "--port", str(free_port()))],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as serving:
        assert serving.stdout is not None
        address = serving.stdout.readline().strip()
        own = httpx.URL(address)
        assert f"version {version}" in _text_of(address)
        serving.send_signal(signal.SIGINT)
        serving.wait(timeout=60)
    pod = f"http://{lab.kube.service(lab.namespace, 'page')}" if lab.kube.here else ""
    if pod:
        for query in ("/", own.raw_path.decode(), f"/release?model={MODEL}&version={version}"):
            assert MODEL in _text_of(f"{pod}{query}")
        assert httpx.get(f"{pod}/try?name={MODEL}", trust_env=False, timeout=60).status_code == 403


def _text_of(address: str) -> str:
    answer = httpx.get(address, trust_env=False, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.text


STAGES = {
    "admit",
    "find_champion",
    "find_targets",
    "export",
    "quantize/local-cpu",
    "package/local-cpu",
    "tune/local-cpu",
    "package",
    "deploy",
    "load_test",
    "shadow",
    "gate",
    "promote",
    "conclude",
}


@pytest.mark.slow
def test_a_followed_log_shows_lines_while_a_stage_still_writes(lab: Lab, shiplift: Shiplift, version: int) -> None:
    lab.log_classifier(MODEL, samples=1150, spec=SPEC)
    newest = version + 1
    name = workflow_of(lab, MODEL, newest)
    with subprocess.Popen(
        [*COMMAND, *shiplift.arguments("logs", name, "-f")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as following:
        assert following.stdout is not None
        first = following.stdout.readline()
        assert first.split()[0] in STAGES
        assert lab.kube.get("workflow", lab.namespace, name)["status"]["phase"] == "Running"
        rest = following.stdout.read()
    assert following.returncode == 0
    assert {"tune/local-cpu", "load_test"} <= {line.split()[0] for line in rest.splitlines()}
    promoted(lab, MODEL, newest)


def test_the_status_and_the_targets_are_the_cluster_s(lab: Lab, shiplift: Shiplift, version: int) -> None:
    status = shiplift.json("status", MODEL)
    assert status["aliases"][CHAMPION] >= version
    assert {release["model"] for release in status["releases"]} == {MODEL}
    listed = shiplift.json("targets")
    assert "local-cpu" in [entry["target"]["name"] for entry in listed["entries"]]
    assert listed["file"] == f"ConfigMap {lab.namespace}/shiplift-targets"
    detected = shiplift.json("targets", "detect")
    assert detected["entries"]
    assert (shiplift.home / "targets.yaml").is_file()


@pytest.mark.slow
def test_a_refused_release_says_why_wherever_one_looks(lab: Lab, shiplift: Shiplift, version: int) -> None:
    newest = lab.log_classifier(MODEL, samples=25, spec=SPEC.replace("score: 1", "score: 0.01"))
    workflow = ended(lab, workflow_of(lab, MODEL, newest))
    assert "tune" not in stage_runs(workflow)  # it costs no search
    name = workflow["metadata"]["name"]
    cause = "refused: accuracy against the champion: accuracy 0."
    message = until(lambda: lab.kube.get("workflow", lab.namespace, name)["status"].get("message"))
    assert message.startswith(cause)
    assert cause in lab.kube("-n", lab.namespace, "get", "workflow", name)
    report = shiplift.json("report", f"{MODEL}/{newest}")
    assert message == f"refused: {report['reason']}"
    link = lab.registry.version(MODEL, newest).tags["shiplift.report_link"]
    assert link.endswith(f"/artifacts/shiplift/releases/{name}/report.html")
    lab.kube("-n", lab.namespace, "delete", "workflow", name)
    (past,) = [release for release in shiplift.json("status", MODEL)["releases"] if release["version"] == newest]
    assert (past["phase"], past["outcome"], past["reason"]) == ("", "refused", report["reason"])
    assert name not in [release["name"] for release in shiplift.json("status")["releases"] if release["phase"]]


def test_a_cancelled_release_is_called_cancelled(lab: Lab, shiplift: Shiplift, version: int) -> None:
    newest = lab.log_classifier(MODEL, samples=1100, spec=SPEC)
    name = workflow_of(lab, MODEL, newest)
    pod_of(lab, name, "admit")
    shiplift("cancel", f"{MODEL}/{newest}")
    ended(lab, name)
    (release,) = [release for release in shiplift.json("status", MODEL)["releases"] if release["version"] == newest]
    assert release["outcome"] == "cancelled"
    assert f"CANCELLED  {MODEL} version {newest}" in shiplift("report", f"{MODEL}/{newest}")
    until(lambda: "cancelled: " in lab.kube.get("workflow", lab.namespace, name)["status"].get("message", ""))


def test_clients_discover_a_model_from_outside_and_from_inside(lab: Lab, shiplift: Shiplift, version: int) -> None:
    images, labels = digits()

    def look() -> Any:
        with contextlib.suppress(NotFound):  # the operator publishes it within its list's interval
            return discover(MODEL, engine="argo", namespace=lab.namespace, home=shiplift.home)
        return None

    served = until(look, seconds=30)
    assert (served.model, served.host, served.version >= version) == (MODEL, f"{MODEL}.{lab.serving}", True)
    assert served.infer({"input": images[:4]})["label"].ravel().tolist() == labels[:4].tolist()
    ask = f"shiplift.discover({MODEL!r}, serving_namespace={lab.serving!r})"
    code = f"import shiplift; served = {ask}; print(served.grpc, served.version)"
    inside = lab.kube("-n", lab.namespace, "exec", "deploy/operator", "--", "python", "-c", code)
    assert inside.split() == [f"{MODEL}.{lab.serving}:8001", str(served.version)]
