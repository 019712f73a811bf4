import math
import re
from typing import Any

import pytest

from runtime.admitted import Admitted
from runtime.records import (
    Candidate,
    Candidates,
    Contract,
    Datasets,
    Endpoint,
    Failure,
    ModelVersion,
    Outcome,
    ReleaseReport,
    Scan,
    StageRun,
    Tuned,
)
from runtime.report import Story, render
from runtime.spec import (
    Conversion,
    Data,
    LatencyTarget,
    Load,
    Quality,
    Quantization,
    Rollout,
    SearchSpace,
    Serving,
    Slo,
    Wanted,
)

from .examples import artifact, case, check, comparison, exported, load_report, package, point, signature, trial

EVIL = "<script>alert('x')</script>&\"'"
ESCAPED = "&lt;script&gt;alert("


def report(**changes: Any) -> ReleaseReport:
    given: dict[str, Any] = {
        "model": "digits", "version": 3, "verdict": Outcome.PASS, "alias": "champion",
        "endpoint": Endpoint(http="http://127.0.0.1:8000/v2/models/digits", grpc="127.0.0.1:8001"),
        "stages": (StageRun(name="admit", seconds=1.5), StageRun(name="tune", target="local-cpu", cached=True)),
        "checks": (check(), check(Outcome.FAIL, "memory", "too much")), "release": "digits-3-0123456789",
        "reason": "every check passed", "exit_code": 0, "seconds": 12.3, "since_request_seconds": 14.0,
        "overhead_seconds": 2.0, "trigger": "webhook",
    }  # fmt: skip
    return ReleaseReport(**given | changes)


def admitted(name: str = "digits", **slo: Any) -> Admitted:
    return Admitted(
        model_version=ModelVersion(
            name=name, version=3, digest="d" * 64, flavor="pytorch", files=artifact(kind="tree"), run_id="run-1"
        ),
        contract=Contract(signature=signature(), example=artifact()),
        datasets=Datasets(validation=artifact("7"), validation_name="shiplift/validation.npz"),
        scan=Scan(scanner="modelaudit 0", files=7),
        wanted=Wanted(), conversion=Conversion(), data=Data(), quantization=Quantization(), quality=Quality(),
        search_space=SearchSpace(), load=Load(), slo=Slo(**slo), latency_target=LatencyTarget(), serving=Serving(),
        rollout=Rollout(),
    )  # fmt: skip


def whole_story(**changes: Any) -> Story:
    candidates = (
        Candidate(precision="fp32", model=artifact(), score=0.95, score_error=0.01, samples=500, latency_ms=1.2),
        Candidate(precision="int8", model=artifact(), dropped="it is slower"),
    )
    given: dict[str, Any] = {
        "admitted": admitted(p99_ms=40),
        "exported": exported(case(), case(math.inf, math.inf, "random-7", 7)),
        "candidates": Candidates(target="t", metric="accuracy", candidates=candidates, notes=("a note on data",)),
        "tuned": Tuned(target="t", package=package(), best=trial(), trials=(trial(), trial(error="died"))),
        "package": package(),
        "load_report": load_report(
            point(1), point(4), point(16, stable=False, spread_percent=33),
            comparison=comparison(rounds=1), notes=("a note on load",),
        ),
        "config": 'name: "digits"',
    }  # fmt: skip
    return Story(**given | changes)


def test_a_report_tells_the_whole_story() -> None:
    page = render(report(), whole_story())
    for words in (
        "digits", "version 3", "every check passed", "too much", "accuracy", "it is slower", "a note on data",
        "a note on load", "random-7", "champion version 1", "name: &#34;digits&#34;", "shiplift/validation.npz",
        "shiplift rerun digits/3", "webhook", "http://127.0.0.1:8000/v2/models/digits", "no (± 33 %)",
    ):  # fmt: skip
        assert words in page, words


@pytest.mark.parametrize("verdict", list(Outcome))
def test_the_verdict_is_on_top_and_in_the_title(verdict: Outcome) -> None:
    page = render(report(verdict=verdict), Story())
    assert f"<title>digits version 3: {verdict}</title>" in page
    assert f'<span class="verdict {verdict}">{verdict}</span>' in page


def test_a_release_that_ended_early_has_a_report_too() -> None:
    ended = report(
        verdict=Outcome.FAIL, alias="", endpoint=None, stages=(), checks=(), exit_code=30,
        failure=Failure(kind="NotAdmitted", exit_code=30, what="no signature", do="Log one."),
        reason="no signature. Log one.",
    )  # fmt: skip
    page = render(ended, Story())
    assert "no signature. Log one." in page
    assert "<svg" not in page


def test_charts_are_drawn_where_there_are_measurements() -> None:
    assert render(report(), whole_story()).count("<svg") == 3
    assert render(report(), whole_story(tuned=None)).count("<svg") == 2
    assert render(report(), whole_story(load_report=None)).count("<svg") == 1
    assert render(report(), whole_story(load_report=load_report(point()), tuned=None)).count("<svg") == 2
    failed = Tuned(target="t", package=package(), best=trial(), trials=(trial(error="died"),))
    assert render(report(), whole_story(tuned=failed, load_report=None)).count("<svg") == 1


def test_the_page_loads_nothing_from_anywhere() -> None:
    page = render(report(), whole_story())
    assert re.findall(r"<(?:script|link|iframe|object|embed|img|base)\b", page) == []
    assert re.findall(r"(?:src|srcset|action|formaction)\s*=", page) == []
    assert [to for to in re.findall(r"href\s*=\s*[\"']([^\"']*)", page) if not to.startswith("#")] == []
    assert [to for to in re.findall(r"url\(([^)]*)\)", page) if not to.startswith("#")] == []
    assert "@import" not in page


def test_the_page_has_no_colour_of_ink_but_its_own() -> None:
    page = render(report(), whole_story())
    assert "#010203" not in page
    assert "currentColor" in page


@pytest.mark.parametrize(
    ("changes", "story"),
    [
        ({"model": EVIL}, {}),
        ({"reason": EVIL}, {}),
        ({"release": EVIL}, {}),
        ({"trigger": EVIL}, {"admitted": admitted()}),
        ({"checks": (check(Outcome.FAIL, EVIL, EVIL, unit=EVIL),)}, {}),
        ({"stages": (StageRun(name="admit", target=EVIL, message=EVIL),)}, {}),
        ({}, {"admitted": admitted(EVIL)}),
        ({}, {"config": EVIL}),
        ({}, {"exported": exported(case(inputs=EVIL), notes=(EVIL,))}),
        ({}, {"candidates": Candidates(target=EVIL, metric=None, candidates=(), notes=(EVIL,))}),
        ({}, {"load_report": load_report(notes=(EVIL,))}),
    ],
)
def test_what_an_author_wrote_is_text_and_never_markup(changes: dict[str, Any], story: dict[str, Any]) -> None:
    page = render(report(**changes), Story(**story))
    assert "<script" not in page
    assert ESCAPED in page


def test_the_page_is_complete_html() -> None:
    page = render(report(), whole_story())
    assert page.startswith("<!doctype html>")
    for tag in ("html", "head", "body", "main", "table", "figure", "svg", "dl", "pre", "style"):
        assert len(re.findall(rf"<{tag}[ >\n]", page)) == page.count(f"</{tag}>"), tag
