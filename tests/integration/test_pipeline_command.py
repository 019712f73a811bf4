"""`shiplift pipeline` on a running stack: members are what was promoted, and a bundle answers as production does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tritonclient import grpc

from shiplift.runtime.serving.machine.server import private_server
from shiplift.runtime.serving.triton.client import TritonClient
from shiplift.runtime.serving.triton.command_line import Features
from shiplift.runtime.store.ledger import PROMOTION
from tests.integration.backends import ENVIRONMENT
from tests.integration.conftest import FAST, Lab, digits

TEXT = """
name: twice
inputs: {image: {datatype: FP32, shape: [-1, 64]}}
outputs: {label: {datatype: INT64, shape: [-1, 1]}, again: {datatype: INT64, shape: [-1, 1]}}
members:
  champion: {model: member}
  pinned: {model: member, version: VERSION, follow: pinned}
steps:
  one: {member: champion, inputs: {input: image}, outputs: {label: label}}
  two: {member: pinned, inputs: {input: image}, outputs: {label: again}}
"""


def shiplift(lab: Lab, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("shiplift")), "--home", str(lab.home), "pipeline", *words]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("SHIPLIFT_")}
    return subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**variables, "COLUMNS": "300"},
    )


@pytest.mark.slow
def test_a_pipeline_is_made_of_what_was_promoted(lab: Lab, tmp_path: Path) -> None:
    promoted = lab.log_classifier("member")
    assert lab.wait("member", promoted).outcome == "promoted"
    refused = lab.log_classifier("member", samples=100, spec=FAST + "quality: {min_score: 0.999}\n")
    assert lab.wait("member", refused).outcome == "refused"

    file = tmp_path / "pipeline.yaml"
    file.write_text(TEXT.replace("VERSION", str(promoted)))
    done = shiplift(lab, tmp_path, "check", "pipeline.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"one: member {promoted}  (image) -> (label)" in done.stdout
    assert "one and two can run at the same time" in done.stdout  # Triton's ensembles can't cope with that
    drawn = shiplift(lab, tmp_path, "check", "pipeline.yaml", "--mermaid")
    assert drawn.stdout.startswith("flowchart LR")
    checked = json.loads(shiplift(lab, tmp_path, "check", "pipeline.yaml", "--json").stdout)
    assert (checked["way"], checked["problems"], checked["order"]) == ("bls", [], ["one", "two"])

    built = shiplift(lab, tmp_path, "build", "pipeline.yaml", "--out", "bundle", "--json")
    assert built.returncode == 0, built.stderr
    assert json.loads(built.stdout)["bundle"] == checked["digest"]
    assert shiplift(lab, tmp_path, "build", "pipeline.yaml", "--out", "bundle").returncode == 64
    _answers_as_production(lab, tmp_path, list(json.loads(built.stdout)["models"]))

    planned = shiplift(lab, tmp_path, "plan", "pipeline.yaml", "--rate", "20", "--p99-ms", "500", "--json")
    assert planned.returncode == 0, planned.stderr
    plan = json.loads(planned.stdout)
    assert [member["name"] for member in plan["members"]] == ["champion"]  # both are the same version of one model
    assert 0 < plan["p50_ms"] < plan["p99_ms"] <= 500
    impossible = shiplift(lab, tmp_path, "plan", "pipeline.yaml", "--rate", "20", "--p99-ms", "0.01")
    assert impossible.returncode == 56, impossible.stderr

    file.write_text(TEXT.replace("VERSION", str(refused)).replace("[-1, 64]", "[-1, 65]"))
    wrong = shiplift(lab, tmp_path, "check", "pipeline.yaml")
    assert wrong.returncode == 65
    assert f"line 7, members.pinned: version {refused} of 'member' is refused" in wrong.stderr
    assert "steps.one.inputs.input: image is FP32[-1, 65], but one takes FP32[-1, 64]" in wrong.stderr
    assert shiplift(lab, tmp_path, "build", "pipeline.yaml", "--out", "other").returncode == 65
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
def test_a_forged_promotion_makes_no_member(lab: Lab, tmp_path: Path) -> None:
    """Whoever may write to a version's run could name any files as its package."""
    version = lab.log_classifier("forged-member")
    assert lab.wait("forged-member", version).outcome == "promoted"
    run = lab.registry.version("forged-member", version).run_id
    envelope = json.loads(lab.registry.read_text(run, PROMOTION) or "")
    lab.registry.write_text(
        run, PROMOTION, json.dumps({**envelope, "record": envelope["record"].replace("local-cpu", "x")})
    )
    file = tmp_path / "pipeline.yaml"
    file.write_text(TEXT.replace("VERSION", str(version)).replace("model: member", "model: forged-member"))
    wrong = shiplift(lab, tmp_path, "check", "pipeline.yaml")
    assert wrong.returncode == 65
    assert f"no genuine record of the promotion of version {version} of 'forged-member'" in wrong.stderr


def _answers_as_production(lab: Lab, folder: Path, models: list[str]) -> None:
    images, _ = digits()
    expected = lab.ask("member", {"input": images[:5]})["outputs"]["label"]
    with (
        private_server(ENVIRONMENT, folder / "bundle", Features(cache_mb=0), log=folder / "log") as server,
        TritonClient(server.grpc, repository_key=server.key) as client,
    ):
        for name in models:
            client.load(name)
        image = grpc.InferInput("image", [5, 64], "FP32")
        image.set_data_from_numpy(images[:5])
        answer = grpc.InferenceServerClient(server.grpc).infer("twice", [image])
        np.testing.assert_array_equal(answer.as_numpy("label"), np.reshape(expected, (-1, 1)))
        np.testing.assert_array_equal(answer.as_numpy("again"), np.reshape(expected, (-1, 1)))
