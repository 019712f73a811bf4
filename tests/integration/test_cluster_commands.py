"""The commands with `--engine argo`, against real MLflow and Triton behind the proxy of an API server.

Only the API server is fake; `tests/cluster/test_commands.py` runs the same on a cluster.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from shiplift.runtime.records.site import Cluster
from tests.integration.conftest import FAST, Lab, Released, digits
from tests.unit.api_server import ApiServer, running

MODEL = "over there"  # its served name differs, which every part must know


@pytest.fixture(scope="module")
def released(lab: Lab) -> int:
    version = lab.log_classifier(MODEL, spec=FAST.replace("slo: {", "slo: {p99_ms: 5000, "))
    assert lab.wait(MODEL, version).exit_code == 0
    return version


@pytest.fixture
def server(lab: Lab) -> Iterator[ApiServer]:
    """A fake cluster with the registry and the models of this machine's stack."""
    place = Cluster(namespace="shiplift", serving_namespace="shiplift-serving", server_image="x")
    site = lab.site.model_copy(update={"place": place, "registry_uri": "http://mlflow.shiplift:5000"})
    parameters = [{"name": "site", "value": site.model_dump_json()}]
    with running() as server:
        server.objects["workflowtemplates"]["release"] = {
            "metadata": {"name": "release"},
            "spec": {"arguments": {"parameters": parameters}},
        }
        server.services = {
            "mlflow:5000": lab.running.registry_uri,
            "over-there-1-abc:8000": f"http://127.0.0.1:{lab.running.http_port}",
        }
        yield server


def shiplift(server: ApiServer, folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "shiplift.pipelines.commands.app",
            "--home",
            str(folder / "home"),
            *words,
            "--engine",
            "argo",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "KUBECONFIG": str(server.kubeconfig(folder))},
    )


@pytest.mark.slow
def test_a_report_and_its_page_come_from_the_registry(
    lab: Lab, server: ApiServer, released: int, tmp_path: Path
) -> None:
    done = shiplift(server, tmp_path, "report", f"{MODEL}/{released}", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    here = lab.engine.report(MODEL, released)
    assert (answer["verdict"], answer["release"], len(answer["checks"])) == ("pass", here.release, len(here.checks))
    page = Path(answer["report"])
    assert page.parent == tmp_path / "home" / "reports"
    assert page.read_text() == Path(here.report).read_text()
    assert not (tmp_path / "home" / "records").exists()
    shown = shiplift(server, tmp_path, "report", f"{MODEL}/{released}")
    assert f"PASS  {MODEL} version {released}" in shown.stdout
    absent = shiplift(server, tmp_path, "report", f"{MODEL}/99")
    assert (absent.returncode, absent.stdout) == (66, "")
    assert "the registry has no version 99" in absent.stderr


@pytest.mark.slow
def test_two_releases_and_all_models_have_pages(server: ApiServer, released: int, tmp_path: Path) -> None:
    name = f"{MODEL}/{released}"
    done = shiplift(server, tmp_path, "report", name, "--compare", name)
    assert done.returncode == 0, done.stderr
    page = Path(done.stdout.strip()).read_text()
    assert "p99 by concurrency" in page
    index = shiplift(server, tmp_path, "report", "--index")
    assert index.returncode == 0, index.stderr
    row = Path(index.stdout.strip()).read_text().split(f"<strong>{MODEL}</strong>")[1]
    assert row.split('data-label="champion">')[1].startswith(f"{released}<")
    assert "p99 within 5000 ms" in row.split("</tr>")[0]


@pytest.mark.slow
def test_past_releases_are_judged_by_what_the_registry_keeps(server: ApiServer, released: int, tmp_path: Path) -> None:
    policy = tmp_path / "stricter.yaml"
    policy.write_text("slo: {p99_ms: 0.001}")
    done = shiplift(server, tmp_path, "gate", f"{MODEL}/{released}", "--policy", str(policy), "--json")
    assert done.returncode == 20, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["flipped"], answer["verified"]) == (1, False)
    assert [(flip["name"], flip["before"], flip["after"]) for flip in answer["releases"][0]["flips"]] == [
        ("p99", "pass", "fail")
    ]
    shown = shiplift(server, tmp_path, "gate", MODEL, "--policy", str(policy))
    assert "1 of 1 verdicts would flip" in shown.stdout
    assert "signatures of the measurements are not checked: the key stays on the cluster" in shown.stdout


@pytest.mark.slow
def test_a_request_reaches_production_through_the_api_server(
    lab: Lab, server: ApiServer, released: int, tmp_path: Path
) -> None:
    images, _ = digits()
    np.savez(tmp_path / "request.npz", input=images[:3])
    words = ("infer", MODEL, "--input", str(tmp_path / "request.npz"), "--json")
    nobody = shiplift(server, tmp_path, *words)
    assert (nobody.returncode, "production does not serve" in nobody.stderr) == (66, True)
    server.objects["tritonservices"][_front()] = {
        "metadata": {"name": _front()},
        "spec": {"model": MODEL, "revision": "over-there-2-abc"},
        "status": {"revision": "over-there-1-abc", "version": 1},
    }
    done = shiplift(server, tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == lab.ask(MODEL, {"input": images[:3]})
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps({"input": [[1.0, 2.0]]}))
    refused = shiplift(server, tmp_path, "infer", MODEL, "--input", str(wrong))
    assert (refused.returncode, "unexpected shape for input" in refused.stderr) == (40, True), refused.stderr


def _front() -> str:
    from shiplift.runtime.base.names import dns_name

    return dns_name(MODEL)


@pytest.mark.slow
def test_a_model_s_status_has_its_aliases_and_the_releases_whose_workflows_are_gone(
    lab: Lab, server: ApiServer, released: int, tmp_path: Path
) -> None:
    answer = json.loads(shiplift(server, tmp_path, "status", MODEL, "--json").stdout)
    report = lab.engine.report(MODEL, released)
    (reason,) = [past["reason"] for past in answer["releases"]]
    assert reason.startswith(f"{report.reason}; Guarded: ")
    past = {
        "name": report.release,
        "model": MODEL,
        "version": released,
        "phase": "",
        "verdict": "pass",
        "outcome": "promoted",
        "reason": reason,
    }
    assert answer == {
        "namespace": "shiplift",
        "services": [],
        "releases": [past],
        "aliases": {"champion": released},
        "drift": "",
        "note": "",
    }
    shown = shiplift(server, tmp_path, "status").stdout
    assert ("promoted" in shown, "removed" in shown) == (True, True)


def test_the_registry_links_to_the_report(lab: Lab, champion: Released) -> None:
    tags = lab.registry.version(champion.model, champion.version).tags
    address, _, path = tags["shiplift.report_link"].partition("/artifacts/")
    assert address.startswith(f"{lab.running.registry_uri}/#/experiments/")
    assert path == tags["shiplift.report"]


def test_without_a_display_open_says_where_the_page_is(server: ApiServer, champion: Released, tmp_path: Path) -> None:
    done = shiplift(server, tmp_path, "report", f"{champion.model}/{champion.version}", "--open")
    assert done.returncode == 0, done.stderr
    assert f"no browser can be opened here; the page is {tmp_path / 'home' / 'reports'}" in done.stderr


@pytest.mark.slow
def test_a_release_is_ordered_as_a_workflow(server: ApiServer, released: int, tmp_path: Path) -> None:
    order = ("rerun", f"{MODEL}/{released}", "--json")
    accepted = json.loads(shiplift(server, tmp_path, *order).stdout)
    assert accepted["queued"]
    assert list(server.workflows) == [accepted["name"]]
    assert shiplift(server, tmp_path, "release", "nobody/1").returncode == 66
