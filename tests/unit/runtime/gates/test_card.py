"""A model card has what was measured, and nothing that an author writes becomes more than text in it."""

import re
from dataclasses import replace
from typing import Any

import pytest
import yaml

from shiplift.runtime.gates.card import card_of
from shiplift.runtime.gates.report import Story
from shiplift.runtime.records.measurement import Tuned
from shiplift.runtime.records.precision import Candidate, Candidates, Slice
from tests.unit.examples import admitted, artifact, check, load_report, package, release_report, trial

EVIL = "<script>x</script> | `a` [l](http://evil)\n# heading"


def story(name: str = "label=1") -> Story:
    slices = (Slice(name=name, score=0.8, error=0.01, samples=3),)
    served = Candidate(precision="fp32", model=artifact(), score=0.9, samples=500, slices=slices)
    return Story(
        admitted=admitted(),
        candidates=Candidates(target="t", metric="accuracy", candidates=(served,)),
        tuned=Tuned(target="t", package=package(), best=trial(), trials=(trial(),)),
        package=package(),
        load_report=load_report(),
    )


def parts(card: str) -> tuple[dict[str, Any], str]:
    _, front, body = card.split("---\n", 2)
    return yaml.safe_load(front), body


def test_the_hub_s_own_reader_finds_what_was_measured() -> None:
    hub = pytest.importorskip("huggingface_hub", reason="it comes with transformers")
    read = hub.ModelCard(card_of(release_report(), story()))
    assert read.data.library_name == "pytorch"
    found = {result.metric_type: result.metric_value for result in read.data.eval_results}
    assert found["accuracy"] == 0.9
    assert found["p99_ms"] == load_report().points[0].p99_ms


def test_every_section_is_there_and_only_what_was_reached() -> None:
    _, body = parts(card_of(release_report(), story()))
    assert re.findall(r"^## (.*)$", body, re.MULTILINE) == [
        "Model",
        "Evaluation",
        "Speed",
        "Forms that were tried",
        "Checks",
    ]
    front, early = parts(card_of(release_report(alias="", checks=()), Story()))
    assert "model-index" not in front
    assert "##" not in early


def test_what_authors_write_is_text() -> None:
    report = release_report(alias="", model=EVIL, reason=EVIL, checks=(check(name=EVIL),))
    front, body = parts(card_of(report, story(EVIL)))
    outside = re.sub(r"(`+).*?\1(?!`)", "", body)
    assert "script" not in outside
    assert "evil" not in outside
    assert not re.search(r"^# heading", body, re.MULTILINE)
    assert "\n" not in front["model-index"][0]["name"]
    for line in body.splitlines():
        if line.startswith("| ``"):
            assert len(re.findall(r"(?<!\\)\|", line)) in (5, 6)


@pytest.mark.parametrize(
    ("flavor", "words"),
    [
        ("pytorch", "`mlflow.pytorch`"),
        ("python_function", "`mlflow.pyfunc`"),
        ("shiplift_pipeline", "`a pipeline of models (shiplift pipeline release)`"),
        ("shiplift_adopted", "`a model of a Triton repository (shiplift adopt)`"),
    ],
)
def test_how_a_model_was_logged_is_said_as_people_know_it(flavor: str, words: str) -> None:
    told = story()
    assert told.admitted
    version = told.admitted.model_version.model_copy(update={"flavor": flavor})
    told = replace(told, admitted=told.admitted.model_copy(update={"model_version": version}))
    assert f"- Logged with {words}, " in card_of(release_report(), told)
