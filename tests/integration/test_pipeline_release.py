"""Pipelines of models through the same stages as models: registered, measured as a whole, promoted, rolled back."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shiplift.runtime.records.release import ReleaseReport
from shiplift.runtime.records.verdict import Outcome
from tests.integration.conftest import FAST, Lab, Released, digits

IMAGES = digits()[0]
TWICE = """
name: twice
inputs: {image: {datatype: FP32, shape: [-1, 64]}}
outputs: {label: {datatype: INT64, shape: [-1, 1]}, again: {datatype: INT64, shape: [-1, 1]}}
members:
  champion: {model: part}
  pinned: {model: part, version: VERSION, follow: pinned}
steps:
  first: {member: champion, inputs: {input: image}, outputs: {label: label}}
  second: {member: pinned, inputs: {input: image}, outputs: {label: again}}
"""
SUMMED = """
name: summed
admission: {python: sandbox}
inputs: {image: {datatype: FP32, shape: [-1, 64]}}
outputs: {total: {datatype: INT64, shape: [1]}}
members: {part: {model: part}}
steps:
  read: {member: part, inputs: {input: image}, outputs: {label: label}, for_each: {over: image, max: 64}}
  add:
    python: add.py
    inputs: {label: label}
    outputs: {total: {datatype: INT64, shape: [1]}}
"""
ADD = """
import numpy as np

def add(label):
    return {"total": np.array([label.sum() + MORE], np.int64)}
"""


@pytest.fixture(scope="module")
def part(lab: Lab) -> int:
    """The version of a promoted member."""
    version = lab.log_classifier("part")
    assert lab.wait("part", version).outcome == "promoted"
    return version


def register(
    lab: Lab,
    folder: Path,
    text: str,
    *,
    files: Mapping[str, str] | None = None,
    spec: str = FAST,
    validation: Mapping[str, Any] | None = None,
    **example: Any,
) -> subprocess.CompletedProcess[str]:
    """Registers a pipeline and follows its release, as its author does."""
    folder.mkdir(exist_ok=True)
    (folder / "pipeline.yaml").write_text(text)
    (folder / "shiplift.yaml").write_text(spec)
    for name, source in (files or {}).items():
        (folder / name).write_text(source)
    np.savez(folder / "requests.npz", **example)
    words = ["pipeline", "release", "pipeline.yaml", *(["--example", "requests.npz"] if example else []), "--json"]
    if validation:
        np.savez(folder / "labelled.npz", **validation)
        words += ["--validation", "labelled.npz"]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("SHIPLIFT_")}
    return subprocess.run(
        [str(Path(sys.executable).with_name("shiplift")), "--home", str(lab.home), *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**variables, "COLUMNS": "300"},
    )


def report_of(done: subprocess.CompletedProcess[str]) -> ReleaseReport:
    assert done.stdout, done.stderr
    return ReleaseReport.model_validate_json(done.stdout)


@pytest.mark.slow
def test_a_static_graph_is_released_as_one_and_goes_back_as_one(lab: Lab, part: int, tmp_path: Path) -> None:
    labels = lab.classifier().predict(IMAGES[:4])
    text = TWICE.replace("VERSION", str(part))
    done = register(lab, tmp_path, text, image=IMAGES[:8])
    first = report_of(done)
    assert (done.returncode, first.outcome) == (0, "promoted"), f"{done.stderr} {report_of(done).reason}"
    answer = lab.ask("twice", {"image": IMAGES[:4]})
    assert answer["version"] == first.version
    np.testing.assert_array_equal(np.ravel(answer["outputs"]["label"]), labels)
    np.testing.assert_array_equal(np.ravel(answer["outputs"]["again"]), labels)
    again = text.replace("name: twice", "name: twice\ntimeout_s: 20")
    second = report_of(register(lab, tmp_path, again, image=IMAGES[:8]))
    assert second.outcome == "promoted", second.reason
    assert bundle_of(lab, "twice") != answer["outputs"]["bundle"]
    assert lab.engine.rollback("twice").version == first.version
    assert bundle_of(lab, "twice") == answer["outputs"]["bundle"]


def bundle_of(lab: Lab, pipeline: str) -> Any:
    return lab.ask(pipeline, {"image": IMAGES[:4]})["outputs"]["bundle"]


@pytest.mark.slow
def test_loops_and_python_are_released_too(lab: Lab, part: int, tmp_path: Path) -> None:
    done = register(lab, tmp_path, SUMMED, files={"add.py": ADD.replace("MORE", "0")}, image=IMAGES[:8])
    report = report_of(done)
    assert (done.returncode, report.outcome) == (0, "promoted"), f"{done.stderr} {report_of(done).reason}"
    load = lab.engine.story(report).load_report
    assert load
    (member,) = load.members
    assert (member.name, member.model, member.version, member.requests_per_request) == ("part", "part", part, 1)
    assert member.compute_ms > 0
    page = Path(report.report).read_text()
    assert "part version" in page
    outputs = lab.ask("summed", {"image": IMAGES[:4]})["outputs"]
    assert np.ravel(outputs["total"]).tolist() == [int(lab.classifier().predict(IMAGES[:4]).sum())]


@pytest.mark.slow
def test_a_new_champion_of_a_member_releases_the_pipeline_again(lab: Lab, tmp_path: Path) -> None:
    assert lab.wait("base", lab.log_classifier("base")).outcome == "promoted"
    text = SUMMED.replace("name: summed", "name: follower").replace("model: part", "model: base")
    first = report_of(register(lab, tmp_path, text, files={"add.py": ADD.replace("MORE", "0")}, image=IMAGES[:8]))
    assert first.outcome == "promoted", first.reason
    before = bundle_of(lab, "follower")
    newer = lab.log_classifier("base", samples=1000)
    assert lab.wait("base", newer).outcome == "promoted"
    second = lab.wait("follower", first.version + 1)
    assert second.outcome == "promoted", second.reason
    assert bundle_of(lab, "follower") != before
    assert lab.registry.version("follower", second.version).tags["shiplift.member"] == f"base/{newer}"
    total = lab.ask("follower", {"image": IMAGES[:4]})["outputs"]["total"]
    assert np.ravel(total).tolist() == [int(lab.classifier(1000).predict(IMAGES[:4]).sum())]
    lab.engine.rollback("base")
    third = lab.wait("follower", first.version + 2)
    assert third.outcome == "promoted", third.reason
    assert bundle_of(lab, "follower") == before  # the same definition with the same member


SPOILT = """
import numpy as np

def spoil(label):
    return {"answer": np.where(np.arange(len(label))[:, None] * 0 + (label % 2 == 0), label, 0)}
"""


@pytest.mark.slow
def test_the_final_answer_is_scored_and_a_pipeline_that_spoils_it_is_refused(
    lab: Lab, part: int, tmp_path: Path
) -> None:
    """The member is right in most cases; a Python step that drops every odd answer is what the gate must see."""
    text = SUMMED.replace("name: summed", "name: judged").replace("add:", "spoil:").replace("add.py", "spoil.py")
    text = text.replace("total: {datatype: INT64, shape: [1]}", "answer: {datatype: INT64, shape: [-1, 1]}")
    labels = digits()[1]
    data = {"image": IMAGES[1200:1400], "label": labels[1200:1400]}
    strict = FAST + "quality: {min_score: 0.85}\n"
    good = SPOILT.replace("label % 2 == 0", "label >= 0")
    done = register(lab, tmp_path, text, files={"spoil.py": good}, spec=strict, validation=data, image=IMAGES[:8])
    report = report_of(done)
    assert report.outcome == "promoted", report.reason
    right = float(np.mean(lab.classifier().predict(data["image"]) == data["label"]))
    story = lab.engine.story(report)
    assert story.package
    assert story.package.score == pytest.approx(right)
    worse = register(lab, tmp_path, text, files={"spoil.py": SPOILT}, spec=strict, validation=data, image=IMAGES[:8])
    refused = report_of(worse)
    assert refused.outcome == "refused"
    assert "accuracy" in refused.reason
    assert "load_test" not in {stage.name for stage in refused.stages if stage.outcome == "ok"}
    assert bundle_of(lab, "judged") == bundle_of(lab, "judged")
    assert lab.ask("judged", {"image": IMAGES[:4]})["version"] == report.version


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "what"),
    [
        (ADD.replace("MORE", "np.random.randint(1000)"), "answers the same request differently"),
        ("def add(label):\n    raise RuntimeError('no luck')\n", "no luck"),
        ("def add(label):\n    while True: pass\n", "has not ended after 10 s"),
        ("def add(label):\n    return {'total': [bytearray(1 << 20) for _ in range(1 << 20)]}\n", ""),
        ("def add(label):\n    return {'sum': label}\n", "total"),
    ],
    ids=["at random", "raises", "hangs", "eats memory", "gives something else"],
)
def test_a_python_step_that_misbehaves_is_refused_and_what_serves_serves_on(
    lab: Lab, part: int, tmp_path: Path, code: str, what: str
) -> None:
    text = SUMMED.replace("name: summed", "name: guarded\ntimeout_s: 10")
    if "guarded" not in (lab.engine.champions() or {}):
        good = register(lab, tmp_path, text, files={"add.py": ADD.replace("MORE", "0")}, image=IMAGES[:8])
        assert report_of(good).outcome == "promoted"
    before = bundle_of(lab, "guarded")
    report = report_of(register(lab, tmp_path, text, files={"add.py": code}, image=IMAGES[:8]))
    assert report.verdict is Outcome.FAIL, report.reason
    assert what in report.reason
    assert {stage.name for stage in report.stages if stage.outcome != "ok"} == {"package"}
    assert bundle_of(lab, "guarded") == before


def test_members_and_code_are_checked_before_anything_is_registered(
    lab: Lab, champion: Released, tmp_path: Path
) -> None:
    text = SUMMED.replace("model: part", "model: nobody")
    nobody = register(lab, tmp_path, text, files={"add.py": ADD}, image=IMAGES[:8])
    assert (nobody.returncode, "nobody" in nobody.stderr) == (65, True)
    text = SUMMED.replace("model: part", f"model: {champion.model}").replace("admission: {python: sandbox}", "")
    silent = register(lab, tmp_path, text, files={"add.py": ADD})
    assert (silent.returncode, "refused by default" in silent.stderr) == (65, True)


@pytest.mark.slow
def test_without_requests_they_are_made_from_the_signature_or_asked_for(lab: Lab, part: int, tmp_path: Path) -> None:
    text = TWICE.replace("VERSION", str(part)).replace("name: twice", "name: unasked")
    made = report_of(register(lab, tmp_path, text))
    assert made.outcome == "promoted", made.reason
    text = SUMMED.replace("name: summed", "name: unknown").replace("[-1, 64]", "[-1, -1]")
    asked = report_of(register(lab, tmp_path, text, files={"add.py": ADD.replace("MORE", "0")}))
    assert asked.outcome == "not admitted"
    assert "--example" in asked.reason
