"""A pipeline of models on a real cluster: registered as on one machine, served as one TritonService, moved as one."""

from pathlib import Path

import numpy as np
import pytest

from shiplift.runtime.records.release import ReleaseReport
from shiplift.runtime.store.registry.terms import CHAMPION
from tests.cluster.conftest import Lab, until
from tests.cluster.test_commands import Shiplift, shiplift
from tests.cluster.test_release import SPEC, ended, promoted, tag, traffic, workflow_of
from tests.integration.conftest import digits

__all__ = ["shiplift"]  # a fixture
IMAGES = digits()[0]
MEMBER, PIPELINE = "part", "summed"
DEFINITION = f"""
name: {PIPELINE}
admission: {{python: sandbox}}
inputs: {{input: {{datatype: FP32, shape: [-1, 64]}}}}
outputs: {{total: {{datatype: INT64, shape: [1]}}}}
members: {{part: {{model: {MEMBER}, follow: champion}}}}
steps:
  read: {{member: part, inputs: {{input: input}}, outputs: {{label: label}}, for_each: {{over: input, max: 64}}}}
  add:
    python: add.py
    inputs: {{label: label}}
    outputs: {{total: {{datatype: INT64, shape: [1]}}}}
"""
ADD = """
import numpy as np

def add(label):
    return {"total": np.array([label.sum() + MORE], np.int64)}
"""


def adding(more: int) -> str:
    """A last step that adds `more` to the sum."""
    return ADD.replace("MORE", str(more))


@pytest.fixture(scope="module")
def member(lab: Lab) -> int:
    """The promoted version of the member."""
    version = lab.log_classifier(MEMBER, spec=SPEC)
    promoted(lab, MEMBER, version)
    ended(lab, workflow_of(lab, MEMBER, version))
    return version


def register(shiplift: Shiplift, folder: Path, *, add: str, code: int = 0) -> ReleaseReport:
    """Registers a version with this last step, and follows its release, which ends with an exit code."""
    (folder / "pipeline.yaml").write_text(DEFINITION)
    (folder / "add.py").write_text(add)
    (folder / "shiplift.yaml").write_text(SPEC)
    np.savez(folder / "requests.npz", input=IMAGES[:8])
    file, example = folder / "pipeline.yaml", folder / "requests.npz"
    words = ["pipeline", "release", str(file), "--example", str(example), "--watch"]
    return ReleaseReport.model_validate(shiplift.json(*words, code=code))


def asked(shiplift: Shiplift, folder: Path) -> tuple[int, int, str]:
    """What production answers to four images: the version, the sum, and the bundle's digest."""
    np.savez(folder / "four.npz", input=IMAGES[:4])
    answer = shiplift.json("infer", PIPELINE, "--input", str(folder / "four.npz"))
    outputs = {name: np.ravel(values) for name, values in answer["outputs"].items()}
    return answer["version"], int(outputs["total"][0]), str(outputs["bundle"][0])


@pytest.mark.slow
def test_a_pipeline_is_one_service_whose_versions_move_without_a_failed_request(
    lab: Lab, shiplift: Shiplift, member: int, tmp_path: Path
) -> None:
    first = register(shiplift, tmp_path, add=adding(0))
    assert first.outcome == "promoted", first.reason
    version, total, bundle = asked(shiplift, tmp_path)
    right = int(lab.fitted[1200].predict(IMAGES[:4]).sum())
    assert (version, total) == (first.version, right)
    until(lambda: lab.condition(PIPELINE, "Ready")["status"] == "True")
    deployments = lab.kube.get("deployment", lab.serving, selector=f"shiplift.dev/model={PIPELINE}")
    assert len(deployments) == 1  # its members are in the same server
    with traffic(lab, PIPELINE) as client:
        until(lambda: client.sent > 20)
        second = register(shiplift, tmp_path, add=adding(1))
        assert second.outcome == "promoted", second.reason
        version, total, newer = asked(shiplift, tmp_path)
        assert (version, total) == (second.version, right + 1)
        assert newer != bundle
        shiplift("rollback", PIPELINE)
        assert asked(shiplift, tmp_path) == (first.version, right, bundle)
        sent = client.sent
        until(lambda: client.sent > sent + 20)
    assert client.failures == []
    assert client.versions == {str(first.version), str(second.version)}


@pytest.mark.slow
def test_a_new_champion_of_a_member_releases_the_pipeline_again(
    lab: Lab, shiplift: Shiplift, member: int, tmp_path: Path
) -> None:
    first = register(shiplift, tmp_path, add=adding(0))
    assert first.outcome == "promoted", first.reason
    newer = lab.log_classifier(MEMBER, samples=1000, spec=SPEC)
    promoted(lab, MEMBER, newer)
    until(lambda: any(info.version > first.version for info in lab.registry.pipelines()), seconds=60)
    promoted(lab, PIPELINE, first.version + 1)
    assert tag(lab, PIPELINE, first.version + 1, "member") == f"{MEMBER}/{newer}"
    assert lab.registry.alias(PIPELINE, CHAMPION) == first.version + 1
    version, total, _ = asked(shiplift, tmp_path)
    assert (version, total) == (first.version + 1, int(lab.fitted[1000].predict(IMAGES[:4]).sum()))


@pytest.mark.slow
def test_a_step_that_raises_refuses_the_pipeline_and_what_served_still_does(
    lab: Lab, shiplift: Shiplift, member: int, tmp_path: Path
) -> None:
    before = register(shiplift, tmp_path, add=adding(0))
    assert before.outcome == "promoted", before.reason
    served = asked(shiplift, tmp_path)
    raises = "def add(label):\n    raise ValueError('no sum today')\n"
    report = register(shiplift, tmp_path, add=raises, code=65)
    assert report.outcome == "failed"
    assert "no sum today" in report.reason
    assert asked(shiplift, tmp_path) == served
