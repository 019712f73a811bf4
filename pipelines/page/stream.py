"""A release under way as server-sent events, each with a part of the page as HTML.

The next state is made when a browser has taken the one before, so nothing piles up for one that reads slowly: it gets
fewer states, each the newest. One that reads nothing for `_STALLED_S` is left, and connects again when it is back.
"""

import asyncio
import contextlib
import statistics
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable
from weakref import WeakKeyDictionary

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Message, Send

from shiplift.pipelines.page.addresses import version_in
from shiplift.pipelines.page.following import Following, State
from shiplift.pipelines.page.reading import PageReader
from shiplift.pipelines.page.rendering import render
from shiplift.runtime.records.release import ReleaseReport

_STREAMS = 512
_BEAT_S = 10.0
_STALLED_S = 30.0


class Stream:
    """The handler of the events' address."""

    def __init__(self, reading: PageReader, following: Following) -> None:
        self._reading, self._following = reading, following
        self._rendered: WeakKeyDictionary[State, tuple[tuple[int, bool, str], dict[str, str]]] = WeakKeyDictionary()

    async def events(self, request: Request) -> Response:
        """The release of a version until it ends; at once the event `ended` if there is none."""
        if self._following.watchers >= _STREAMS:
            return PlainTextResponse("too many browsers watch releases\n", 503, headers={"retry-after": "5"})
        name, number = version_in(request)
        version = (await self._reading.model(name)).value.version(number)
        running = version.under_way if version else None
        parts = self._parts(running.release, name, number) if running else _ended()
        return _Taken(parts)

    async def _parts(self, release: str, name: str, number: int) -> AsyncGenerator[str, None]:
        usual, sent_at = usual_seconds(await self._reading.reports(name)), time.monotonic()
        sent: dict[str, str] = {}
        async for state in self._following.watch(release, f"{name}/{number}"):
            for event, text in self._render(state, usual).items() if state else ():
                if sent.get(event) != text:
                    sent[event], sent_at = text, time.monotonic()
                    yield sse(event, text)
            if time.monotonic() - sent_at > _BEAT_S:
                sent_at = time.monotonic()
                yield sse("beat", "")  # no comment, since scripts do not see those
            if state and state.ended:
                self._reading.forget()
                yield sse("ended", "")

    def _render(self, state: State, usual: dict[str, float]) -> dict[str, str]:
        """The parts of the page, rendered once for all who watch."""
        known = self._rendered.get(state)
        what = (state.shown, state.ended, state.problem)
        if known is None or known[0] != what:
            known = self._rendered[state] = (what, _rendered(state, usual))
        return known[1]


class _Taken(StreamingResponse):
    """A stream that ends when its reader takes nothing for `_STALLED_S`: the server then closes the connection."""

    def __init__(self, parts: AsyncGenerator[str, None]) -> None:
        super().__init__(parts, media_type="text/event-stream")
        self._parts = parts

    async def stream_response(self, send: Send) -> None:
        """Sends the parts, each after the one before was taken."""

        async def taken(message: Message) -> None:
            await asyncio.wait_for(send(message), _STALLED_S)

        try:
            with contextlib.suppress(TimeoutError):
                await super().stream_response(taken)
        finally:
            await self._parts.aclose()


async def _ended() -> AsyncGenerator[str, None]:
    yield sse("ended", "")


def sse(event: str, text: str) -> str:
    """A server-sent event."""
    lines = "".join(f"data: {line}\n" for line in text.splitlines() or [""])
    return f"event: {event}\n{lines}\n"


def usual_seconds(reports: Iterable[ReleaseReport]) -> dict[str, float]:
    """How long each stage took in a model's earlier releases, in seconds: the median of those that it ran in."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for report in reports:
        for stage in report.stages:
            if not stage.cached and stage.outcome == "ok":
                seconds[stage.name].append(stage.seconds)
    return {name: statistics.median(each) for name, each in seconds.items()}


def _rendered(state: State, usual: dict[str, float]) -> dict[str, str]:
    stages = list(state.stages.items())
    return {
        "now": render("now.html.j2", state=state),
        "stages": render("stages.html.j2", stages=stages, usual=usual),
        "log": render("log.html.j2", log=state.log),
    }
