"""Try it: a form that sends a request to a model in production, and shows the answer and the same call elsewhere."""

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass

import httpx
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from shiplift.pipelines.page.addresses import text_in
from shiplift.pipelines.page.doors import Access, NotAllowed
from shiplift.pipelines.page.forms import MAX_BYTES, PageForms
from shiplift.pipelines.page.reading import PageReader
from shiplift.pipelines.page.rendering import render
from shiplift.pipelines.page.requests import body_of, entries_of, example, files_in
from shiplift.pipelines.page.snippets import snippets
from shiplift.runtime.base.errors import UsageError
from shiplift.runtime.serving.discovery import ServedModel

_TIMEOUT_S = 30.0
_SHOWN = 20_000  # characters of an answer
_AT_ONCE = 4
_MOST = 18 << 20  # bytes of a form on this machine: what the scoring server takes, as a form writes it


@dataclass(frozen=True, kw_only=True)
class TryResult:
    """What came back, for people, after how many milliseconds; `ok` is false if it is an error."""

    text: str
    ms: float
    ok: bool


class Trying:
    """The handlers of "try it". `transport` replaces the network in tests."""

    def __init__(
        self,
        reading: PageReader,
        access: Access,
        forms: PageForms,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._reading, self._access, self._forms, self._transport = reading, access, forms, transport
        self._at_once = asyncio.Semaphore(_AT_ONCE)

    async def form(self, request: Request) -> Response:
        """The form, as the model's signature asks for it."""
        self._access.require_actors()
        served = await self._served(request)
        return await self._page(request, served, {"json": example(served)} if "json" in request.query_params else {})

    async def send(self, request: Request) -> Response:
        """Sends the request, and shows what came back beside the form."""
        self._access.require_actors()
        given = await self._forms.read(request, most=_MOST if self._access.local else MAX_BYTES)
        if not self._access.may_act(given.get("token", "")):
            raise NotAllowed("the token is wrong", do="Give the one that the page was started with.")
        served = await self._served(request)
        try:
            body = body_of(served, given)
        except UsageError as error:
            return await self._page(request, served, given, wrong=str(error))
        answered = await self._ask(served.invocations, body)
        return await self._page(request, served, given, answered=answered, body=body)

    async def _served(self, request: Request) -> ServedModel:
        return await self._reading.served(text_in(request, "name"))

    async def _ask(self, address: str, body: str) -> TryResult:
        async with (
            self._at_once,
            httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False, transport=self._transport) as client,
        ):
            began = time.perf_counter()
            try:
                answer = await client.post(address, content=body.encode(), headers={"content-type": "application/json"})
            except httpx.HTTPError as error:
                said = f"the scoring server does not answer: {type(error).__name__} {error}"
                return TryResult(text=said, ms=(time.perf_counter() - began) * 1000, ok=False)
            took = (time.perf_counter() - began) * 1000
        return TryResult(text=_pretty(answer.text), ms=took, ok=answer.is_success)

    async def _page(
        self, request: Request, served: ServedModel, given: Mapping[str, str], *, body: str = "", **variables: object
    ) -> Response:
        cookie, form = self._forms.open(request)
        kind = await self._reading.kind(served.model, served.version)
        entries = () if "json" in given else entries_of(served, given, kind)
        text = render(
            "try.html.j2",
            told=None,
            served=served,
            entries=entries,
            json=given.get("json", "") or example(served),
            form=form,
            asks_token=self._access.asks_token,
            calls=snippets(served, body, files_in(entries)) if body else {},
            **{"answered": None, "wrong": "", **variables},
        )
        return self._forms.keep(HTMLResponse(text), cookie)


def _pretty(text: str) -> str:
    with contextlib.suppress(ValueError, RecursionError):  # not JSON: as it is
        text = json.dumps(json.loads(text), indent=1, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}\n... and {len(text) - _SHOWN} more characters"
