import html
import math
import re
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from shutil import which
from typing import Any
from unittest.mock import MagicMock

import pytest

from shiplift.runtime.gates import report as report_module
from shiplift.runtime.gates.report import (
    ModelSummary,
    Story,
    config_changes,
    pareto,
    render,
    render_comparison,
    render_index,
)
from shiplift.runtime.records.failure import Failure
from shiplift.runtime.records.measurement import Tuned
from shiplift.runtime.records.precision import Candidate, Candidates, Slice
from shiplift.runtime.records.release import StageRun
from shiplift.runtime.records.verdict import Outcome
from tests.unit.examples import (
    admitted,
    artifact,
    case,
    check,
    comparison,
    config,
    exported,
    load_report,
    package,
    point,
    trial,
)
from tests.unit.examples import release_report as report

EVIL = "<script>alert('x')</script>&\"'"
ESCAPED = "&lt;script&gt;alert("


def whole_story(**changes: Any) -> Story:
    candidates = (
        Candidate(precision="fp32", model=artifact(), score=0.95, score_error=0.01, samples=500, latency_ms=1.2),
        Candidate(precision="int8", model=artifact(), dropped="it is slower"),
    )
    fields: dict[str, Any] = {
        "admitted": admitted(p99_ms=40),
        "exported": exported(case(), case(math.inf, math.inf, "random-7", 7)),
        "candidates": Candidates(target="t", metric="accuracy", candidates=candidates, notes=("a note on data",)),
        "tuned": Tuned(target="t", package=package(), best=trial(), trials=(trial(), trial(error="died"))),
        "package": package(),
        "load_report": load_report(
            point(1),
            point(4),
            point(16, stable=False, spread_percent=33),
            comparison=comparison(rounds=1),
            notes=("a note on load",),
        ),
        "config": 'name: "digits"',
    }
    return Story(**fields | changes)


@cache
def whole_page() -> str:
    """The page of the whole story, with its charts: drawn once."""
    return render(report(), whole_story())


@pytest.fixture
def sketched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Charts are told what to draw, and draw nothing."""

    def sketch(draw: Callable[[Any], None]) -> str:
        draw(MagicMock())
        return "<svg></svg>"

    monkeypatch.setattr(report_module, "_svg", sketch)


def test_a_report_tells_the_whole_story() -> None:
    page = whole_page()
    for words in (
        "digits",
        "version 3",
        "every check passed",
        "too much",
        "accuracy",
        "it is slower",
        "a note on data",
        "a note on load",
        "random-7",
        "champion version 1",
        "name: &#34;digits&#34;",
        "shiplift/validation.npz",
        "shiplift rerun digits/3",
        "webhook",
        "http://127.0.0.1:8000/v2/models/digits",
        "no (± 33 %)",
    ):
        assert words in page, words


def test_targets_that_are_not_served_are_named_below_the_verdict() -> None:
    page = render(report(serving_target="fast", not_served=("arm", "spare")), Story())
    assert "Note: target fast is deployed and judged, arm, spare are not: one target serves per machine" in page
    assert "one target serves" not in render(report(serving_target="fast"), Story())


@pytest.mark.parametrize("verdict", list(Outcome))
def test_the_verdict_is_on_top_and_in_the_title(verdict: Outcome) -> None:
    page = render(report(verdict=verdict), Story())
    assert f"<title>digits version 3: {verdict}</title>" in page
    assert f'<span class="verdict {verdict}">{verdict}</span>' in page


def test_a_refused_release_says_what_to_do() -> None:
    slow = check(Outcome.FAIL, do="Raise `slo.p99_ms`; then `shiplift rerun MODEL/VERSION`.")
    page = render(report(verdict=Outcome.FAIL, alias="", endpoint=None, checks=(slow,)), Story())
    assert "<li>p99: Raise `slo.p99_ms`; then `shiplift rerun digits/3`.</li>" in page
    assert "What to do" not in render(report(), Story())


def test_a_release_that_ended_early_has_a_report_too() -> None:
    ended = report(
        verdict=Outcome.FAIL,
        alias="",
        endpoint=None,
        stages=(),
        checks=(),
        exit_code=30,
        failure=Failure(kind="NotAdmitted", exit_code=30, what="no signature", do="Log one."),
        reason="no signature. Log one.",
    )
    page = render(ended, Story())
    assert "no signature. Log one." in page
    assert "<svg" not in page


@pytest.mark.usefixtures("sketched")
def test_charts_are_drawn_where_there_are_measurements() -> None:
    assert render(report(), whole_story()).count("<svg") == 3
    assert render(report(), whole_story(tuned=None)).count("<svg") == 2
    assert render(report(), whole_story(load_report=None)).count("<svg") == 1
    assert render(report(), whole_story(load_report=load_report(point()), tuned=None)).count("<svg") == 2
    failed = Tuned(target="t", package=package(), best=trial(), trials=(trial(error="died"),))
    assert render(report(), whole_story(tuned=failed, load_report=None)).count("<svg") == 1


@pytest.mark.usefixtures("sketched")
def test_what_the_search_chose_and_left_out_is_told() -> None:
    told: dict[str, Any] = {
        "idle": "the chosen configuration can use 1 of 2 cores",
        "knee": "the knee of the curve was chosen",
        "untried": ("int8 on ONNX Runtime was not tried",),
    }
    tuned = Tuned(target="t", package=package(), best=trial(), trials=(trial(),), **told)
    page = render(report(), whole_story(tuned=tuned, load_report=load_report(point(4), point(16), knee=16)))
    assert "Cores are left idle: the chosen configuration can use 1 of 2 cores." in page
    assert "Without <code>slo.p99_ms</code>, the knee of the curve was chosen." in page
    assert "int8 on ONNX Runtime was not tried." in page
    assert "The knee is at 16 requests in flight: 1,000" in page
    assert tuned.remark() == "the chosen configuration can use 1 of 2 cores; int8 on ONNX Runtime was not tried"


@pytest.mark.usefixtures("sketched")
def test_the_load_generator_s_table_is_on_the_page_and_never_a_link_to_this_machine() -> None:
    kept = load_report(point(1), table=artifact(uri="/srv/artifacts/00/0000"))
    page = render(report(), whole_story(load_report=kept, load_table="phase,side\nsweep,<b>\n"))
    assert '<pre id="load-test">phase,side\nsweep,&lt;b&gt;\n</pre>' in page
    assert "file:" not in page
    long = render(report(), whole_story(load_report=kept))
    assert "<code>/srv/artifacts/00/0000</code>" in long
    assert "file:" not in long


def test_the_page_loads_nothing_from_anywhere() -> None:
    page = whole_page()
    assert re.findall(r"<(?:script|link|iframe|object|embed|img|base)\b", page) == []
    assert re.findall(r"(?:src|srcset|action|formaction)\s*=", page) == []
    assert [to for to in re.findall(r"href\s*=\s*[\"']([^\"']*)", page) if not to.startswith("#")] == []
    assert [to for to in re.findall(r"url\(([^)]*)\)", page) if not to.startswith("#")] == []
    assert "@import" not in page


def test_the_page_has_no_colour_of_ink_but_its_own() -> None:
    page = whole_page()
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


def everything() -> Story:
    """A story with whatever a page can show."""
    load = load_report(
        point(1),
        point(4, client_saturated=True),
        point(16, 3000, 40),
        comparison=comparison(p99_ratio=1.2),
        champion_points=(point(1), point(4, 900, 12)),
        open_points=(point(0, 500, 30, rate_per_s=500.0),),
        knee=4,
        max_rate_per_s=500.0,
        notes=("a note on load",),
        raw=artifact("9"),
    )
    parts = (Slice(name="north <b>", score=0.9, error=0.01, samples=200),)
    candidate = Candidate(precision="fp32", model=artifact(), score=0.95, samples=500, slices=parts)
    trials = tuple(
        trial(config=config(batch), throughput_per_s=100.0 * batch, p99_ms=2.0 * batch, cost_per_million=1.0 / batch)
        for batch in (1, 8, 32)
    )
    return whole_story(
        load_report=load,
        candidates=Candidates(target="t", metric="accuracy", candidates=(candidate,)),
        tuned=Tuned(target="t", package=package(), best=trials[2], trials=trials),
        config="a: 1\nb: 2\nc: 3",
        champion_config="a: 1\nb: 7\nc: 3",
    )


@cache
def full_page() -> str:
    """The page of everything, with its charts: drawn once."""
    checks = (check(severity="warn"), check(Outcome.FAIL, "memory", "too much"))
    return render(report(checks=checks), everything())


def test_a_page_shows_whatever_was_measured() -> None:
    page = full_page()
    for words in (
        "Latency by arrival rate",
        "Pareto front",
        "Highest arrival rate within the p99 limit: 500",
        "warning",
        "the client was the bottleneck",
        "north &lt;b&gt;",
        '<span class="removed">-b: 7</span>',
        '<span class="added">+b: 2</span>',
        "cost per million",
        "95 % interval",
        "9" * 64,
        "shiplift gate digits/3 --policy",
    ):
        assert words in page, words
    assert page.count("<svg") == 4


@pytest.mark.usefixtures("sketched")
def test_a_slice_is_one_line_with_every_precision_beside_it() -> None:
    def scored(precision: Any, **scores: float) -> Candidate:
        parts = tuple(Slice(name=name, score=score, error=0.01, samples=200) for name, score in scores.items())
        return Candidate(precision=precision, model=artifact(), score=0.9, samples=400, slices=parts)

    candidates = (
        scored("fp32", north=0.91, south=0.92),
        Candidate(precision="fp16", model=artifact(), dropped="x"),
        scored("int8", north=0.81),
    )
    scores = Candidates(target="t", metric="accuracy", candidates=candidates)
    page = render(report(), whole_story(candidates=scores))
    table = next(part for part in page.split("<table>") if "<th>slice</th>" in part).split("</table>")[0]
    rows = [re.sub(r"<[^>]+>", " ", row).split() for row in table.split("</tr>")[:-1]]
    assert rows == [
        ["slice", "samples", *["fp32", "on", "ONNX", "Runtime", "int8", "on", "ONNX", "Runtime"]],
        ["north", "200", "0.91", "±", "0.01", "0.81", "±", "0.01"],
        ["south", "200", "0.92", "±", "0.01", "-"],
    ]


def test_the_whole_configuration_is_folded_away_beside_its_changes() -> None:
    assert "<details><summary" in full_page()
    assert "<details open><summary" in whole_page()


def test_the_pareto_front_is_what_nothing_beats_in_both() -> None:
    points = [(100, 5), (200, 9), (150, 9), (300, 20), (50, 4), (60, 6)]
    trials = [trial(throughput_per_s=float(rate), p99_ms=float(p99)) for rate, p99 in points]
    assert [(t.throughput_per_s, t.p99_ms) for t in pareto([*trials, trial(error="died", throughput_per_s=1e9)])] == [
        (50, 4),
        (100, 5),
        (200, 9),
        (300, 20),
    ]


def test_the_same_configuration_has_no_changes() -> None:
    assert config_changes("a\n", "a\n") == config_changes("", "a") == []
    assert [kind for kind, _ in config_changes("a\nb", "a\nc")] == ["soft", "same", "removed", "added"]


@pytest.mark.usefixtures("sketched")
def test_two_releases_are_shown_side_by_side() -> None:
    older, newer = report(version=1, checks=(check(),)), report(version=3, model=EVIL)
    page = render_comparison((older, whole_story()), (newer, everything()))
    assert "digits 1" in page
    assert ESCAPED in page
    assert "<script" not in page
    assert page.count("<svg") == 2
    assert render_comparison((older, Story()), (newer, Story())).count("<svg") == 0


def test_names_are_drawn_as_they_are_whatever_a_chart_s_library_would_read_in_them() -> None:
    """matplotlib reads `$...$` as a formula, and a page with one that it can't parse was not drawn at all."""
    names = [r"$\frac{1$", "a$b$c", r"\alpha_{", "%s{0}{{7*7}}", "</text><script>", "\u202ex"]
    for older, newer in zip(names[::2], names[1::2], strict=True):
        pages = report(version=1, model=older), report(version=3, model=newer)
        page = render_comparison((pages[0], whole_story()), (pages[1], everything()))
        assert page.count("<svg") == 2
        assert "<script" not in page
        assert "\u202e" not in page
        assert all(html.escape(name, quote=False) in page for name in (older, newer) if name != "\u202ex")
        assert render_index((ModelSummary(model=older, champion=1, limits=newer, releases=pages),)).count("<svg") == 1


def test_the_index_tells_each_models_standing_and_trend() -> None:
    releases = (report(version=1), report(version=2, verdict=Outcome.FAIL, reason="too slow"))
    page = render_index(
        (
            ModelSummary(model="digits", champion=1, limits="p99 within 40 ms", releases=releases),
            ModelSummary(model=EVIL, champion=0, limits="none", releases=()),
        )
    )
    for words in ("2 models", "p99 within 40 ms", "too slow", '<span class="fail"', ESCAPED):
        assert words in page
    assert page.count("<svg") == 1
    assert "No model has been released yet" in render_index(())


def test_the_trend_shows_each_version_s_p99_from_nothing_to_the_most() -> None:
    def trend(*measured: float | None) -> str:
        releases = tuple(
            report(version=at, checks=(check().model_copy(update={"measured": value}),))
            for at, value in enumerate(measured, start=1)
        )
        page = render_index((ModelSummary(model="m", champion=1, limits="none", releases=releases),))
        return page[page.index("p99 in ms</th>") :]

    page = trend(10, None, 40, 20)
    assert '<polyline points="0.0,21.5 50.0,2.0 100.0,15.0"' in page
    assert "<title>version 1: 10 ms, version 3: 40 ms, version 4: 20 ms</title>" in page
    assert "</svg>20" in page
    assert "<svg" not in trend(10)
    assert 'points="0.0,28.0 100.0,28.0"' in trend(0, 0)
    assert trend(*range(1, 40)).count(" ms, ") == 11


def _luminance(colour: str) -> float:
    """Relative luminance, as WCAG 2 defines it."""
    digits = colour.lstrip("#")
    digits = "".join(2 * digit for digit in digits) if len(digits) == 3 else digits
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(first: str, second: str) -> float:
    light, dark = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _schemes(page: str) -> dict[str, dict[str, str]]:
    """The colours by name that the page gives to light screens, dark screens and paper."""
    names = r"--(\w+): (#[0-9a-f]+)"
    style = page[page.index("<style>") : page.index("</style>")]
    dark_at, print_at = style.index("@media screen and (prefers-color-scheme: dark)"), style.index("@media print")
    light = dict(re.findall(names, style[:dark_at]))
    dark = light | dict(re.findall(names, style[dark_at : style.index("* {")]))
    return {"light": light, "dark": dark, "print": light | dict(re.findall(names, style[print_at:]))}


def test_text_and_charts_can_be_read_on_every_paper() -> None:
    """WCAG 2's levels: 4.5 for text, 3 for what a chart is drawn with."""
    page = full_page()
    drawn = set(re.findall(r"(?:stroke|fill): (#[0-9a-f]{6})", page))
    grid = set(re.findall(r"stroke: (#[0-9a-f]{6}); stroke-opacity: 0.25", page))
    assert len(drawn) > 3
    for scheme, colours in _schemes(page).items():
        for paper in ("paper", "card"):
            for name in ("ink", "soft", "pass", "fail", "inconclusive"):
                assert _contrast(colours[name], colours[paper]) >= 4.5, (scheme, name, paper)
        for colour in drawn | grid:
            assert _contrast(colour, colours["card"]) >= 3, (scheme, colour)


CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := which(name))), None)


def chromium(folder: Path) -> list[str]:
    """Headless Chromium with a profile of its own, and its first options."""
    return [
        str(CHROMIUM),
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--allow-file-access-from-files",
        f"--user-data-dir={folder / 'profile'}",
        "--hide-scrollbars",
    ]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium to look at the page with")
@pytest.mark.parametrize("which_page", ["release", "comparison", "index"])
def test_a_phone_shows_the_page_whole_and_not_blank(which_page: str, tmp_path: Path) -> None:
    """At 390 pixels nothing sticks out sideways, and the screenshot has ink and colour on it."""
    pages: dict[str, Callable[[], str]] = {
        "release": full_page,
        "comparison": lambda: render_comparison((report(), whole_story()), (report(version=4), everything())),
        "index": lambda: render_index((ModelSummary(model="digits", champion=3, limits="none", releases=(report(),)),)),
    }
    (tmp_path / "page.html").write_text(pages[which_page]())
    # Headless Chromium has no window narrower than 500 pixels: a frame is as narrow as it is told to be.
    frame = '<iframe id="f" src="page.html" width="390" height="1600" style="border:0"></iframe>'
    script = (
        "<script>onload = () => { const e = document.getElementById('f').contentDocument.documentElement;"
        "document.title = e.scrollWidth + ' of ' + e.clientWidth; }</script>"
    )
    (tmp_path / "frame.html").write_text(f"<!doctype html><body style='margin:0'>{frame}{script}</body>")
    words = chromium(tmp_path)
    at = (tmp_path / "frame.html").as_uri()
    shot = tmp_path / "shot.png"
    subprocess.run(
        [*words, "--window-size=600,1600", f"--screenshot={shot}", at], capture_output=True, check=True, timeout=120
    )
    dom = subprocess.run([*words, "--dump-dom", at], capture_output=True, text=True, check=True, timeout=120).stdout
    title = re.search(r"<title>(\d+) of (\d+)</title>", dom)
    assert title is not None
    assert int(title[1]) <= int(title[2])
    from matplotlib.image import imread

    pixels = imread(shot)[:, :390, :3]
    assert pixels.std() > 0.03
    assert len({tuple(pixel) for pixel in pixels[::7, ::7].reshape(-1, 3).round(2)}) > 10


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium to look at the page with")
def test_a_dark_screen_shows_the_page_dark_with_light_ink(tmp_path: Path) -> None:
    from matplotlib.image import imread

    (tmp_path / "page.html").write_text(full_page())
    shot, at = tmp_path / "dark.png", (tmp_path / "page.html").as_uri()
    words = [*chromium(tmp_path), "--blink-settings=preferredColorScheme=0", "--window-size=1280,2000"]
    subprocess.run([*words, f"--screenshot={shot}", at], capture_output=True, check=True, timeout=120)
    pixels = imread(shot)[:, :, :3]
    assert (pixels[5, 5] * 255).round().tolist() == [0x0B, 0x11, 0x20]
    assert pixels.mean() < 0.2
    assert pixels.max() > 0.85


def test_the_page_is_complete_html() -> None:
    page = whole_page()
    assert page.startswith("<!doctype html>")
    for tag in ("html", "head", "body", "main", "table", "figure", "svg", "dl", "pre", "style"):
        assert len(re.findall(rf"<{tag}[ >\n]", page)) == page.count(f"</{tag}>"), tag
