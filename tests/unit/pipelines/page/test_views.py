import html
import re
from pathlib import Path

from shiplift.pipelines.engines.answers import ClusterStatus, Incident, ServiceSummary, UnderWay, WorkflowStatus
from shiplift.pipelines.page.overview import model_view, overview_of
from shiplift.runtime.base.errors import StackDown, Temporary
from shiplift.runtime.records.failure import Failure
from shiplift.runtime.records.measurement import Tuned
from shiplift.runtime.records.release import ReleaseReport, StageRun
from shiplift.runtime.records.verdict import Outcome
from tests.unit.examples import check, config, package, trial
from tests.unit.pipelines.page.fakes import FakeEngine, browser, report

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "{{ 7*7 }}",
    "..",
    "a b&c=d#e%2F?x",
    "javascript:alert(1)",
    "\u202egnp.exe",
    "</textarea></title><svg onload=alert(1)>",
)
PAGES = ("/", "/model?name=digits", "/release?model=digits&version=1")
LINK = re.compile(r'href="([^"]*)"')


def shown(page: str) -> str:
    """What a reader sees of a page: its text."""
    return html.unescape(re.sub(r"<[^>]+>", " ", page))


def test_the_first_page_lists_models_with_their_champion_health_and_figures() -> None:
    engine = FakeEngine(models={"digits": 3, "spam": 2}, incidents=(Incident(at=1, model="spam", event="it healed"),))
    text = shown(browser(engine).get("/").text)
    for words in ("digits", "spam", "2 models", "4 ms", "0.92", "accuracy", "mlflow", "running", "spam: it healed"):
        assert words in " ".join(text.split()), words


def test_models_come_in_pages_and_are_found_by_a_part_of_their_name() -> None:
    engine = FakeEngine(models={f"model-{at:03}": 2 for at in range(60)})
    client = browser(engine)
    assert client.get("/").text.count('id="model-') == 25
    last = client.get("/", params={"page": "3"}).text
    assert last.count('id="model-') == 10
    for page in ("99", "-1", "x", "9" * 30, ""):
        assert client.get("/", params={"page": page}).status_code == 200
    found = shown(client.get("/", params={"find": "EL-05"}).text)
    assert "model-057" in found
    assert "model-049" not in found
    assert "No model has nothing" in shown(client.get("/", params={"find": "nothing"}).text)


def test_a_model_page_has_every_version_and_charts_over_them() -> None:
    page = browser(FakeEngine()).get("/model", params={"name": "digits"}).text
    text = " ".join(shown(page).split())
    for words in (
        "version 3",
        "champion",
        "promoted",
        "p99 over versions",
        "accuracy over versions",
        "100 %",
        "digits/1 retired: <b>replaced</b>",
    ):
        assert words in text, words
    assert page.count("<svg") == 2


def test_a_release_page_has_checks_with_their_limits_stages_and_the_search() -> None:
    tuned = Tuned(
        target="local-cpu",
        package=package(),
        best=trial(),
        trials=(trial(), trial(throughput_per_s=500, p99_ms=2, config=config(16)), trial(error="it failed")),
        configurations=3,
    )
    page = browser(FakeEngine(records=(tuned,))).get("/release", params={"model": "digits", "version": "1"}).text
    text = " ".join(shown(page).split())
    for words in ("promoted", "p99 3 10 ms pass", "local-cpu", "3 configurations measured", "webhook"):
        assert words in text, words
    assert page.count('class="chosen"') == 1
    assert page.count('class="front"') == 1


def test_a_refused_release_says_why_and_what_to_do() -> None:
    refused = report(
        version=1,
        verdict=Outcome.FAIL,
        alias="",
        exit_code=20,
        reason="p99 is too high",
        checks=(check(Outcome.FAIL, "p99", "12 ms is over the budget of 10 ms", do="Rerun `MODEL/VERSION`."),),
    )
    text = " ".join(shown(browser(FakeEngine(recorded=[refused])).get(PAGES[2]).text).split())
    for words in ("p99 is too high", "12 ms is over the budget", "What to do p99: Rerun `digits/1`."):
        assert words in text, words


def test_a_version_that_failed_says_what_to_do() -> None:
    failed = report(
        version=1,
        verdict=Outcome.FAIL,
        alias="",
        exit_code=30,
        failure=Failure(kind="NotAdmitted", exit_code=30, what="it has no signature", do="Log one."),
    )
    text = " ".join(shown(browser(FakeEngine(recorded=[failed])).get(PAGES[2]).text).split())
    assert "What to do: Log one." in text
    assert "Rerun" not in text


def test_hostile_names_and_reasons_are_text_in_every_view() -> None:
    for name in HOSTILE:
        visited = {link.partition("?")[0] for link in _visited(name)}
        assert visited - {"/act"} == {"/", "/model", "/release"}, name


def _visited(name: str) -> list[str]:
    """The addresses that lead from the first page to a model of this name, each of which shows it as text."""
    stage = StageRun(name="export", message=name, outcome="refused")
    ended = report(name, 1, reason=name, stages=(stage,), checks=(check(Outcome.FAIL, name, name),), trigger=name)
    running = UnderWay(release="r", model=name, version=2, stage=name, target=name)
    engine = FakeEngine(models={name: 2}, recorded=[ended], finding=name, reason=name, outcome=name)
    engine.incidents, engine.under_way_now = (Incident(at=1, model=name, event=name),), (running,)
    client, visited, ahead = browser(engine), [], ["/"]
    while ahead:
        address = ahead.pop()
        answer = client.get(address)
        assert answer.status_code == (200 if address == "/" or _valid(name) else 400), address
        _without_markup(answer.text, name)
        visited.append(address)
        links = {
            html.unescape(link)
            for link in LINK.findall(answer.text)
            if "=" in link and not link.startswith(("/static", "/try", "/what-if"))
        }
        ahead += sorted(links - {*visited, *ahead})
    return visited


def _valid(name: str) -> bool:
    """Whether MLflow takes it; a page about another one is an error that names it."""
    return name.isprintable() and not set(name) & set("/:")


def _without_markup(page: str, name: str) -> None:
    assert "<script>alert" not in page
    assert not re.search(r"<[^>]*\son\w+=", page.replace(html.escape(name), ""))
    assert "<img" not in page
    assert "onload=alert(1)>" not in page
    assert "\u202e" not in page
    assert not re.search(r"=['\"]?javascript:", page)


def test_what_does_not_exist_and_what_makes_no_sense_gets_a_page_that_says_so() -> None:
    client = browser(FakeEngine())
    cases = {
        "/model?name=nobody": (404, "nobody"),
        "/release?model=digits&version=99": (404, "no version 99"),
        "/release?model=digits&version=x": (400, "not a version number"),
        "/release?model=digits&version=0": (400, "not a version number"),
        "/release?model=a:b&version=1": (400, "can't be a model's name"),
        "/release?version=1": (400, "lacks `model`"),
        "/model": (400, "lacks `name`"),
        "/nothing/here": (404, "There is no page"),
        "/static/../app.py": (404, "There is no page"),
        "/report?model=digits&version=1": (404, "no report page"),
    }
    for address, (code, words) in cases.items():
        answer = client.get(address)
        assert answer.status_code == code, address
        assert words in shown(answer.text), address


def test_a_version_that_was_never_released_has_a_page_all_the_same() -> None:
    engine = FakeEngine(outcome="not released")
    answer = browser(engine).get("/release?model=digits&version=3")
    assert answer.status_code == 200
    assert "not released" in answer.text


def test_a_stored_report_is_shown_without_scripts(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text("<!doctype html><title>the report</title>")
    engine = FakeEngine(recorded=[report(version=1, report=str(file))])
    answer = browser(engine).get("/report?model=digits&version=1")
    assert "the report" in answer.text
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src" not in policy


def test_without_the_registry_the_page_says_so_and_recovers() -> None:
    engine = FakeEngine()
    client = browser(engine)
    engine.mlflow = False
    assert "The registry (MLflow) does not run" in shown(client.get("/").text)
    engine.mlflow = True
    assert "does not run" not in client.get("/").text
    engine.error = StackDown("mlflow is not running", do="Run `shiplift up`.")
    page = client.get("/model?name=digits")
    assert page.status_code == 503
    assert "mlflow is not running" in shown(page.text)
    assert 'hx-trigger="every 3s"' in page.text  # it tries again by itself
    engine.error = None
    assert client.get("/model?name=digits").status_code == 200
    engine.error = Temporary("the registry does not answer", do="Wait.")
    page = client.get("/model?name=digits")  # what was known, with a note
    assert page.status_code == 200
    assert "the registry does not answer" in shown(page.text)
    assert "What you see was true" in page.text


def test_a_bug_gets_a_page_too() -> None:
    class Broken(FakeEngine):
        def report(self, model: str, version: int) -> ReleaseReport:
            raise ValueError("<b>")

    answer = browser(Broken()).get("/release?model=digits&version=1")
    assert answer.status_code in {500, 503}
    assert "<b>" not in answer.text


def test_a_cluster_s_state_has_the_same_views() -> None:
    runs = (
        WorkflowStatus(name="w-2", model="digits", version=2, phase="Running", outcome="under way: tune"),
        WorkflowStatus(name="w-1", model="digits", version=1, phase="Succeeded", outcome="promoted", verdict="pass"),
    )
    service = ServiceSummary(model="digits", state="Stalled", reason="NoPods", version=1, weights={"digits-a": 90})
    status = ClusterStatus(namespace="shiplift", services=(service,), releases=runs, aliases={"champion": 1})
    overview = overview_of(status)
    assert [each.release for each in overview.releasing] == ["w-2"]
    assert (overview.models[0].champion, overview.models[0].share) == (1, "digits-a: 90 %")
    assert overview.models[0].ails == "Stalled: NoPods"
    view = model_view("digits", status)
    assert [(each.version, each.aliases) for each in view.versions] == [(2, ()), (1, ("champion",))]
    assert view.versions[0].under_way is not None
