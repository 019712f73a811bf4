import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from shiplift.pipelines.engines.answers import UnderWay
from shiplift.pipelines.page import following, stream
from shiplift.pipelines.page.app import create_app
from shiplift.pipelines.page.following import Following, State
from shiplift.pipelines.page.stream import sse, usual_seconds
from shiplift.runtime.base.errors import StackDown
from shiplift.runtime.records.release import Event
from tests.unit.pipelines.page.fakes import HOST, LOCAL, FakeEngine, browser, report

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


# --- a crowd, at the level of ASGI: what a server would do for each connection ---


async def connected(app: Any, send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
    """A browser that watches until the stream ends; `send` takes what the page sends it."""
    scope = {
        "type": "http",
        "asgi": {"spec_version": "2.3"},
        "method": "GET",
        "path": "/events",
        "query_string": b"model=digits&version=3",
        "headers": [(b"host", HOST.encode())],
    }
    await app(scope, asyncio.Event().wait, send)


class Flood(FakeEngine):
    """Ten thousand events a second of a thousand stages, with long messages, until nobody watches or `over` is set."""

    def __init__(self) -> None:
        super().__init__(under_way_now=RUNNING, lines=["x" * 100_000] * 200)
        self.over, self.told_of = threading.Event(), 0

    def events(self, _: str) -> Iterator[Event | None]:
        while not self.over.wait(0.01):
            for at in range(100):
                self.told_of += 1
                where = f"target-{(self.told_of + at) % 2000}"
                yield Event(stage="tune", target=where, kind="progress", message=f"{self.told_of} " + "m" * 20_000)


def test_two_hundred_browsers_and_a_flood_of_events_cost_what_one_browser_costs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is made and kept does not grow with the events or with the browsers; all of them see the end."""
    made: list[int] = []
    sizes: list[int] = []
    monkeypatch.setattr(following, "_EVERY_S", 0.2)
    monkeypatch.setattr(following, "_STAGES", 20)

    def rendered(state: State, _: dict[str, float]) -> dict[str, str]:
        made.append(state.changes)
        sizes.append(sum(len(each.message) for each in state.stages.values()) + sum(map(len, state.log)))
        return {"now": f"{state.changes} of {len(state.stages)}"}

    monkeypatch.setattr(stream, "_rendered", rendered)
    engine = Flood()
    app = create_app(engine, LOCAL)  # type: ignore[arg-type]
    got: list[list[bytes]] = [[] for _ in range(200)]

    async def all_watch() -> None:
        def taking(into: list[bytes]) -> Callable[[dict[str, Any]], Awaitable[None]]:
            async def send(message: dict[str, Any]) -> None:
                into.append(message.get("body", b""))

            return send

        watching = [asyncio.ensure_future(connected(app, taking(each))) for each in got]
        while len(made) < 4 or engine.told_of < 2000:
            await asyncio.sleep(0.01)
        engine.over.set()
        await asyncio.gather(*watching)

    started = time.monotonic()
    asyncio.run(all_watch())
    most = (time.monotonic() - started) / 0.2 + 3  # the first and the last state, and one for each time between
    assert len(made) <= most
    assert max(sizes) <= (20 + 200) * following._CHARACTERS
    assert max(map(len, got)) <= most + 2
    assert all(b"event: ended" in b"".join(each) for each in got)


def test_a_browser_that_reads_slowly_gets_the_newest_state_and_one_that_reads_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(following, "_EVERY_S", 0.01)
    monkeypatch.setattr(stream, "_STALLED_S", 0.5)
    monkeypatch.setattr(stream, "_rendered", lambda state, _: {"now": f"after {state.changes}."})
    engine = Flood()
    app = create_app(engine, LOCAL)  # type: ignore[arg-type]
    slow: list[str] = []
    blocked = 0

    async def reads_slowly(message: dict[str, Any]) -> None:
        slow.append(message.get("body", b"").decode())
        if len(slow) == 2:  # the first state
            before = engine.told_of
            while engine.told_of < before + 500:
                await asyncio.sleep(0.01)

    async def reads_nothing(message: dict[str, Any]) -> None:
        nonlocal blocked
        blocked += bool(message.get("body"))
        await asyncio.sleep(0 if message["type"] == "http.response.start" else 3600)

    async def both_watch() -> None:
        reading = asyncio.ensure_future(connected(app, reads_slowly))
        await asyncio.wait_for(connected(app, reads_nothing), 30)
        while len(slow) < 3:
            await asyncio.sleep(0.01)
        engine.over.set()
        await reading

    asyncio.run(both_watch())
    assert blocked == 1
    first, second = (int(each.partition("after ")[2].partition(".")[0]) for each in slow[1:3])
    assert second >= first + 100  # nothing of what came meanwhile was kept for it
