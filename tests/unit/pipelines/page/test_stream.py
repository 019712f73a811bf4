import asyncio
import threading
from collections.abc import Iterator

from shiplift.pipelines.engines.answers import UnderWay
from shiplift.pipelines.page import following
from shiplift.pipelines.page.following import Following, State
from shiplift.pipelines.page.stream import sse, usual_seconds
from shiplift.runtime.base.errors import StackDown
from shiplift.runtime.records.release import Event
from tests.unit.pipelines.page.fakes import FakeEngine, browser, report

EVENTS = "/events?model=digits&version=3"
RUNNING = (UnderWay(release="digits-3-x", model="digits", version=3, stage="tune"),)


def test_a_release_under_way_is_shown_as_it_happens() -> None:
    engine = FakeEngine(under_way_now=RUNNING, lines=["a line of <b>the</b> log"])
    engine.told = [
        Event(stage="export", kind="started"),
        Event(stage="export", kind="finished", seconds=1.25, outcome="ok"),
        None,
        Event(stage="tune", target="local-cpu", kind="progress", message="<i>7</i> of 12", done=0.58),
    ]
    client = browser(engine)
    page = client.get("/release?model=digits&version=3").text
    assert f'sse-connect="{EVENTS.replace("&", "&amp;")}"' in page
    stream = client.get(EVENTS)
    assert stream.headers["content-type"].startswith("text/event-stream")
    for words in ("export", "1.25", "local-cpu", "&lt;i&gt;7&lt;/i&gt; of 12", 'value="58.0"', "usually 8"):
        assert words in stream.text, words
    assert "a line of &lt;b&gt;the&lt;/b&gt; log" in stream.text
    assert stream.text.rstrip().endswith("data:")
    assert "event: ended" in stream.text


def test_without_a_release_under_way_the_stream_ends_at_once() -> None:
    assert browser(FakeEngine()).get(EVENTS).text == sse("ended", "")
    assert browser(FakeEngine()).get("/events?model=digits&version=99").text == sse("ended", "")
    assert browser(FakeEngine()).get("/events?model=nobody&version=1").status_code == 404


def test_a_release_that_can_t_be_followed_says_why() -> None:
    class Stopped(FakeEngine):
        def events(self, _: str) -> Iterator[Event | None]:
            yield Event(stage="tune", kind="started")
            raise StackDown("the dispatcher is not running", do="Run `shiplift up`.")

    text = browser(Stopped(under_way_now=RUNNING)).get(EVENTS).text
    assert "the dispatcher is not running" in text
    assert "event: ended" not in text  # so the browser connects again


def test_many_watch_one_thread_and_a_flood_of_events_is_one_state() -> None:
    begun: list[str] = []
    go_on = threading.Event()

    class Flooding(FakeEngine):
        def events(self, release: str) -> Iterator[Event | None]:
            begun.append(release)
            go_on.wait(30)
            for at in range(3000):
                yield Event(stage="tune", kind="progress", message=str(at))

    async def watched(follow: Following) -> int:
        states = 0
        async for state in follow.watch("r", "digits/3"):
            states += state is not None
            if follow.watchers == 40:  # one that comes after the end follows anew
                go_on.set()
        return states

    async def all_watch() -> list[int]:
        follow = Following(Flooding())  # type: ignore[arg-type]
        counts = await asyncio.gather(*(watched(follow) for _ in range(40)))
        assert follow.watchers == 0
        return counts

    following_every, following._EVERY_S = following._EVERY_S, 0.05
    try:
        counts = asyncio.run(all_watch())
    finally:
        following._EVERY_S = following_every
    assert begun == ["r"]
    assert max(counts) < 300


def test_a_stage_that_nobody_watches_is_not_followed() -> None:
    seen: list[int] = []
    over = threading.Event()

    class Endless(FakeEngine):
        def events(self, _: str) -> Iterator[Event | None]:
            try:
                while True:
                    seen.append(1)
                    yield None
            finally:
                over.set()

    async def leave() -> None:
        follow = Following(Endless())  # type: ignore[arg-type]
        watching = follow.watch("r", "digits/3")
        await anext(watching)
        await watching.aclose()  # type: ignore[attr-defined]

    asyncio.run(leave())
    assert over.wait(30)


def test_what_happens_now_in_words() -> None:
    state = State()
    assert state.now == "it waits for its next stage"
    state.stages["tune", "gpu"] = Event(stage="tune", target="gpu", kind="progress", message="3 of 4")
    assert state.now == "tune for gpu: 3 of 4"
    state.ended, state.stages = True, {}
    assert state.now == "it ended"


def test_a_stage_usually_takes_the_median_of_its_earlier_runs() -> None:
    assert usual_seconds([report(version=1), report(version=2)]) == {"export": 1.5, "tune": 8}
