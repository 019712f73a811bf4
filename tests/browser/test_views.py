"""Every view in a real Chromium: accessible, within a phone's width, by keyboard alone, and hostile texts as text."""

import base64
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from shiplift.pipelines.engines.answers import AbortedRelease, Incident, UnderWay
from shiplift.runtime.base.errors import StackDown, Temporary
from shiplift.runtime.records.asked import AskedAgain
from shiplift.runtime.records.failure import Failure
from shiplift.runtime.records.kinds.contract import DeclaredImage
from shiplift.runtime.records.measurement import Tuned
from shiplift.runtime.records.release import Event, StageRun
from shiplift.runtime.records.verdict import Outcome
from tests.browser.conftest import PHONE, Watched, serving
from tests.huggingface import image_file
from tests.unit.examples import admitted, artifact, check, config, package, signature, tensor, trial
from tests.unit.pipelines.page.fakes import FakeEngine, report
from tests.unit.pipelines.page.test_trying import served as model_of
from tests.unit.pipelines.page.test_trying import table
from tests.unit.pipelines.page.test_views import HOSTILE

Opened = Callable[..., Watched]
Served = Callable[..., str]
RUNNING = UnderWay(release="digits-3-x", model="digits", version=3, stage="tune")
VIEWS = (
    "/",
    "/?find=nothing",
    "/model?name=digits",
    "/model?name=nobody",
    "/release?model=digits&version=1",
    "/release?model=digits&version=2",
    "/release?model=digits&version=3",
    "/what-if?name=digits",
    "/what-if?name=digits&slo.p99_ms=x",
    "/try?name=digits",
    "/try?name=digits&json=1",
    "/ask?model=digits&version=2",
    "/act?action=rerun&model=digits&version=2",
    "/act?action=rollback&model=digits&version=2",
)
LONG = "a-model-with-a-name-that-is-longer-than-any-phone-is-wide-" * 3
MARKDOWN = "[click](javascript:alert(1)) **bold** ![x](http://127.0.0.1:9/x.png) <img src=x onerror=alert(1)>"


class Endless(FakeEngine):
    """Its release under way goes on until the test is over."""

    over = threading.Event()

    def events(self, _: str) -> Iterator[Event | None]:
        yield from self.told
        while not self.over.wait(0.2):
            yield None


def full(name: str = "digits", words: str = "p99 is too high") -> FakeEngine:
    """An engine with something in every part of every view; `words` stand wherever people write something."""
    refused = report(
        name,
        2,
        verdict=Outcome.FAIL,
        alias="",
        exit_code=20,
        reason=words,
        checks=(check(Outcome.FAIL, words, words), check(name="accuracy", measured=0.9, limit=0.8)),
        stages=(StageRun(name="export", seconds=1, message=words), StageRun(name="tune", outcome="refused")),
        failure=Failure(kind="Refused", exit_code=20, what=words, do=words),
        trigger=words,
    )
    tuned = Tuned(
        target="local-cpu",
        package=package(),
        best=trial(),
        trials=(trial(), trial(throughput_per_s=500, p99_ms=2, config=config(16))),
        configurations=2,
    )
    engine = Endless(
        models={name: 3, LONG: 2},
        recorded=[report(name, 1), refused],
        records=(tuned, admitted()),
        finding=words,
        reason=words,
        release=f"{name}-2-x",
        lines=[f"{words} {at}" for at in range(100)],
        served=[table(model=name)],
    )
    engine.under_way_now = (RUNNING.model_copy(update={"model": name, "stage": "tune"}),)
    engine.incidents = (Incident(at=1, model=name, event=words),)
    engine.told = [
        Event(stage="export", kind="finished", seconds=1.25, outcome="ok", message=words),
        Event(stage="tune", target="local-cpu", kind="progress", message=words, done=0.58),
    ]
    return engine


def settled(watched: Watched) -> None:
    """Waits until a page's events have come, if it has any."""
    page = watched.page
    page.wait_for_load_state("load")
    if page.locator("[sse-connect]").count():
        page.wait_for_selector("[sse-swap=stages] table")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_view_has_a_barrier_or_scrolls_sideways_on_a_phone(opened: Opened, served: Served, scheme: str) -> None:
    base = served(full(words=f"{LONG} is too slow"))
    for size in ({"width": 1280, "height": 900}, PHONE):
        watched = opened(base, color_scheme=scheme, viewport=size, reduced_motion="reduce")
        for view in VIEWS:
            watched.page.goto(view)
            settled(watched)
            assert watched.violations() == [], (view, size)
            assert watched.overflow() <= 0, (view, size)
        _without(watched, "404")


def _without(watched: Watched, *expected: str) -> None:
    """Forgets complaints that a test asked for, such as of a page that does not exist."""
    watched.complaints[:] = [each for each in watched.complaints if not any(words in each for words in expected)]


@pytest.mark.parametrize("words", [*HOSTILE, MARKDOWN])
def test_what_authors_write_is_shown_as_text(opened: Opened, served: Served, words: str) -> None:
    name = words if words.isprintable() and not set(words) & set("/:") else "digits"
    base = served(full(name, words))
    watched = opened(base)
    seen: list[str] = []
    watched.page.on("request", lambda request: seen.append(request.url))
    for view in ("/", "/model", "/release", "/what-if", "/try", "/act"):
        query = {"name": name, "model": name, "version": "2", "action": "rerun"}
        address = str(httpx.URL(f"{base}{view}", params=query if view != "/" else {}))
        watched.page.goto(address)
        assert watched.page.locator("main h1").count() == 1, view
        assert watched.page.locator("main img, main script, main svg[onload], main [onerror]").count() == 0
    watched.page.goto(str(httpx.URL(f"{base}/release", params={"model": name, "version": "3"})))
    settled(watched)
    shown = "".join(each for each in words if each.isprintable())
    assert shown in watched.page.locator("[sse-swap=stages]").inner_text()
    assert shown in watched.page.locator("[sse-swap=log]").inner_text()
    assert all(url.startswith((base, "data:")) for url in seen), seen


def test_everything_is_reached_and_done_by_keyboard(opened: Opened, served: Served) -> None:
    engine = full()
    answer = httpx.MockTransport(lambda _: httpx.Response(200, json={"predictions": [7]}))
    base = served(engine, transport=answer)
    watched = opened(base)
    page = watched.page
    page.goto("/")
    watched.tab_to("Skip to the content", limit=1)
    page.keyboard.press("Enter")
    assert watched.focused() == "content"
    watched.tab_to("find")
    page.keyboard.type("digits")
    page.keyboard.press("Enter")
    page.wait_for_url("**/?find=digits")
    watched.tab_to("model-1")
    page.keyboard.press("Enter")
    page.wait_for_url("**/model?name=digits")
    watched.tab_to("what-if")
    page.keyboard.press("Enter")
    page.wait_for_url("**/what-if?*")
    watched.tab_to("limit-1")
    page.keyboard.type("8")
    page.go_back()
    watched.tab_to("try")
    page.keyboard.press("Enter")
    page.wait_for_url("**/try?*")
    watched.tab_to("column0")
    page.keyboard.type("12")
    watched.tab_to("Send")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=predictions")
    page.goto("/release?model=digits&version=2")
    watched.tab_to("act-rerun")
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:has-text('Release again')")
    watched.tab_to("reason")
    page.keyboard.type("the data were wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Done:")
    assert engine.done == ["order digits/2 again=True"]
    assert next(entry["reason"] for _, _, entry in engine.tags) == "the data were wrong"


def test_a_picture_is_dropped_shown_and_sent(opened: Opened, served: Served, tmp_path: Path) -> None:
    picture = tmp_path / "seven.png"
    picture.write_bytes(image_file(20, 20, "PNG"))
    encoded = base64.b64encode(picture.read_bytes()).decode()
    inputs = tensor("input", -1, 1, datatype="BYTES")
    engine = FakeEngine(
        recorded=[report(version=2)],
        records=(admitted().model_copy(update={"contract": DeclaredImage(signature=signature(), example=artifact())}),),
        served=[model_of(inputs, schema=[{"type": "string", "required": True}])],
    )
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(200, json={"predictions": [{"label": "seven"}]})

    base = served(engine, transport=httpx.MockTransport(answer))
    watched = opened(base, viewport=PHONE)
    page = watched.page
    page.goto("/try?name=digits")
    dropped = page.evaluate_handle(
        """text => { const all = new DataTransfer(), bytes = Uint8Array.from(atob(text), each => each.charCodeAt(0));
        all.items.add(new File([bytes], 'seven.png', {type: 'image/png'})); return all }""",
        encoded,
    )
    chooser = page.locator("#column0-file")
    chooser.evaluate(
        "(chooser, all) => { chooser.files = all.files; chooser.dispatchEvent(new Event('change')) }", dropped
    )
    page.wait_for_selector("#column0-shown:not([hidden])")
    assert watched.violations() == []
    page.get_by_role("button", name="Send").click()
    page.wait_for_selector("text=seven")
    assert json.loads(asked[0].content) == {"inputs": [[encoded]]}
    assert "base64 -w0 image.png" in page.locator("[aria-label=curl]").inner_text()
    assert watched.overflow() <= 0
    page.locator("#column0-file").set_input_files(picture)  # as chosen, instead of dropped
    page.get_by_role("button", name="Send").click()
    page.wait_for_selector("text=seven")
    assert len(asked) == 2


def test_a_refused_version_is_asked_and_its_answer_comes_by_itself(opened: Opened, served: Served) -> None:
    release = threading.Event()

    class Slow(FakeEngine):
        def ask_given(self, *asked: Any) -> AskedAgain:
            release.wait(60)
            return super().ask_given(*asked)

    engine = Slow(recorded=[report(version=2)], records=(admitted(),))
    watched = opened(served(engine))
    page = watched.page
    page.goto("/release?model=digits&version=2")
    watched.tab_to("ask")
    page.keyboard.press("Enter")
    watched.tab_to("Ask")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=is asked")
    assert watched.violations() == []
    release.set()
    page.wait_for_selector("text=the same way twice")
    assert watched.violations() == []


def test_what_is_in_focus_stays_while_the_page_loads_itself_again(opened: Opened, served: Served) -> None:
    base = served(full())
    watched = opened(base)
    watched.page.goto("/model?name=digits")
    watched.tab_to("version-2")
    for _ in range(2):
        with watched.page.expect_response("**/model?name=digits"):
            pass
    watched.page.wait_for_timeout(500)  # the answer is swapped in
    assert watched.focused() == "version-2"


def test_the_registry_goes_away_and_returns(opened: Opened, served: Served) -> None:
    engine = full()
    base = served(engine)
    watched = opened(base)
    page = watched.page
    page.goto("/model?name=digits")
    engine.error = Temporary("the registry (MLflow) does not answer", do="It is asked again.")
    page.wait_for_selector("text=What you see was true")
    assert page.locator("#version-2").count() == 1  # what was known is still there
    engine.error = None
    page.wait_for_selector("text=What you see was true", state="detached")
    engine.error = StackDown("mlflow is not running", do="Run `shiplift up`.")
    page.goto("/model?name=" + LONG)  # never seen before
    page.wait_for_selector("text=This page tries again by itself")
    engine.error = None
    page.wait_for_selector("#version-2")
    _without(watched, "503")


def test_the_server_of_the_page_goes_away_and_returns(opened: Opened) -> None:
    engine = full()
    with serving(engine) as base:
        watched = opened(base)
        watched.page.goto("/release?model=digits&version=3")
        settled(watched)
    watched.page.wait_for_selector("#offline:not([hidden])")
    with serving(engine, port=int(base.rpartition(":")[2])):
        watched.page.wait_for_selector("#offline", state="hidden")
        watched.page.goto("about:blank")
    _without(watched, "ERR_", "[object Event]")


def test_ten_thousand_events_leave_a_page_that_answers(opened: Opened, served: Served) -> None:
    engine = full()
    engine.told = [
        Event(stage="tune", target=f"target-{at % 50}", kind="progress", message=f"trial {at}", done=at / 10_000)
        for at in range(10_000)
    ]
    base = served(engine)
    watched = opened(base)
    watched.page.goto("/release?model=digits&version=3")
    watched.page.wait_for_selector("text=trial 9999")
    assert watched.page.locator("[sse-swap=stages] tbody tr").count() == 50


def test_two_hundred_browsers_watch_and_the_page_goes_on_answering(opened: Opened, served: Served) -> None:
    engine = full()
    base = served(engine)
    with (
        httpx.Client(base_url=base, trust_env=False, timeout=60, limits=httpx.Limits()) as crowd,
        ExitStack() as streams,
    ):
        for _ in range(200):
            stream = streams.enter_context(crowd.stream("GET", "/events?model=digits&version=3"))
            assert stream.status_code == 200
        watched = opened(base)
        watched.page.goto("/release?model=digits&version=3")
        settled(watched)
        watched.page.goto("/")
        assert watched.page.locator("h1").inner_text() == "Models"


class Abortable(Endless):
    """Its release under way ends when somebody aborts it, as a real one does."""

    def __init__(self, of: FakeEngine) -> None:
        super().__init__(**vars(of))
        self.over = threading.Event()

    def abort(self, model: str, reason: str) -> AbortedRelease:
        self.end(reason)
        return super().abort(model, reason)

    def end(self, reason: str) -> None:
        ended = {
            "verdict": Outcome.INCONCLUSIVE,
            "alias": "",
            "exit_code": 22,
            "reason": f"aborted: {reason}",
            "checks": (),
        }
        self.recorded.append(report("digits", 3, **ended))
        self.under_way_now = ()
        self.over.set()


def test_a_release_is_aborted_by_keyboard_and_whoever_watches_it_sees_so(opened: Opened, served: Served) -> None:
    engine = Abortable(full())
    base = served(engine)
    watcher, actor = opened(base), opened(base)
    watcher.page.goto("/release?model=digits&version=3")
    settled(watcher)
    page = actor.page
    page.goto("/release?model=digits&version=3")
    actor.tab_to("act-abort")
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:has-text('Abort')")
    assert actor.violations() == []
    actor.tab_to("reason")
    page.keyboard.type("the wrong data")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Done:")
    assert "version 2 serves" in page.locator("main").inner_text()
    assert engine.done == ["abort digits: the wrong data"]
    assert next(entry["reason"] for _, _, entry in engine.tags) == "the wrong data"
    watcher.page.wait_for_selector("text=aborted: the wrong data")
    assert watcher.page.locator("[sse-connect], #act-abort").count() == 0
    assert watcher.violations() == []


def test_a_page_that_slept_an_hour_without_a_connection_says_so_and_catches_up(opened: Opened) -> None:
    """The release ended meanwhile."""
    engine = Abortable(full())
    with serving(engine) as base:
        watched = opened(base)
        page = watched.page
        page.clock.install()
        page.goto("/release?model=digits&version=3")
        settled(watched)
        said = page.locator("#offline")
    engine.end("it took too long")
    page.clock.fast_forward("01:00:00")  # as if the lid was closed: what is due runs once, now
    page.wait_for_selector("#offline:has-text('slept for 60 min, so what you see is old'), #offline:has-text('lost')")
    assert page.locator("[sse-swap=stages] table").count() == 1  # what was known is still there
    with serving(engine, port=int(base.rpartition(":")[2])):
        page.wait_for_selector("text=aborted: it took too long")
        page.wait_for_selector("#offline:has-text('slept for 60 min. What you see now is up to date')")
        assert watched.violations() == []
        page.clock.fast_forward(16_000)
        page.wait_for_selector("#offline", state="hidden")
        assert said.inner_text() == ""
        page.goto("about:blank")
    _without(watched, "ERR_", "[object Event]")


def test_a_connection_that_died_in_silence_is_made_anew(opened: Opened, served: Served) -> None:
    """As after a sleep behind a proxy: the browser was told of no error, and nothing comes any more."""
    engine = full()
    base = served(engine)
    watched = opened(base)
    page = watched.page
    connections: list[str] = []
    page.on("request", lambda request: connections.append(request.url) if "/events" in request.url else None)
    page.clock.install()
    page.goto("/release?model=digits&version=3")
    settled(watched)
    assert len(connections) == 1
    engine.told.append(Event(stage="package", kind="started", message="it went on"))
    page.clock.fast_forward("01:00:00")
    page.wait_for_selector("#offline:has-text('What you see now is up to date')")
    page.wait_for_selector("text=it went on")
    assert len(connections) == 2
    _without(watched, "[object Event]")


def test_a_list_that_slept_says_so_and_is_loaded_again(opened: Opened, served: Served) -> None:
    engine = full()
    watched = opened(served(engine))
    page = watched.page
    page.clock.install()
    page.goto("/")
    assert page.locator("#live table >> text=newer").count() == 0
    engine.models["newer"] = 1
    page.clock.fast_forward("02:00:00")
    page.wait_for_selector("#offline:has-text('slept for 2 h. What you see now is up to date')")
    assert page.locator("#live table >> text=newer").count() == 1
