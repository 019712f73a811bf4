"""Try a version that does not serve: one row, to the original and to a form of it, as `shiplift ask` does.

Both run confined, and production is not asked. That takes seconds to minutes: a thread asks, and the page waits for it.
"""

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from shiplift.pipelines.engines.protocol import Engine
from shiplift.pipelines.page.addresses import version_in
from shiplift.pipelines.page.doors import Access, NotAllowed
from shiplift.pipelines.page.forms import PageForms
from shiplift.pipelines.page.reading import PageReader, Records
from shiplift.pipelines.page.rendering import address, render
from shiplift.pipelines.page.requests import entries_of, example_row, row_of
from shiplift.runtime.base.errors import NotFound, ShipliftError, Temporary, UsageError
from shiplift.runtime.records.asked import AskedAgain
from shiplift.runtime.serving.discovery import ServedModel

_KEPT, _WAITING = 50, 8  # answers that can be looked at, and questions that may wait for their turn
_ROWS = 16


@dataclass(frozen=True, kw_only=True)
class Question:
    """What somebody asks a version. `form` empty: the original alone; `rows` are those of its proof, else a `row`."""

    model: str
    version: int
    form: str
    rows: tuple[int, ...]
    row: Mapping[str, object]

    def ask(self, engine: Engine) -> AskedAgain:
        """Asks it. Raises what the engine raises."""
        if self.rows:
            return engine.ask(self.model, self.version, self.form, self.rows, 1)
        return engine.ask_given(self.model, self.version, self.form, self.row, 1)


@dataclass(frozen=True, kw_only=True)
class _Answering:
    question: Question
    task: "asyncio.Task[AskedAgain]"
    began: float


class CandidatePages:
    """The handlers of the address. One question is asked at a time: it takes a server and a sandbox of its own."""

    def __init__(self, engine: Engine, reading: PageReader, access: Access, forms: PageForms) -> None:
        self._engine, self._reading, self._access, self._forms = engine, reading, access, forms
        self._answering: OrderedDict[str, _Answering] = OrderedDict()
        self._turn = asyncio.Semaphore(1)

    async def form(self, request: Request) -> Response:
        """The form; with `answer`, how far its question is, or what the answer was."""
        self._access.require_actors()
        model, version = version_in(request)
        number = request.query_params.get("answer", "")
        if number:
            return await self._answer(number, model, version)
        records = await self._admitted(model, version)
        given = {"json": example_row(_as_served(records))} if "json" in request.query_params else {}
        return self._page(request, records, given)

    async def send(self, request: Request) -> Response:
        """Begins to ask, and leads to the page that shows the answer."""
        self._access.require_actors()
        given = await self._forms.read(request)
        if not self._access.may_act(given.get("token", "")):
            raise NotAllowed("the token is wrong", do="Give the one that the page was started with.")
        model, version = version_in(request)
        records = await self._admitted(model, version)
        try:
            question = _question(records, given)
            number = self._begin(question)
        except UsageError as error:
            return self._page(request, records, given, wrong=str(error))
        return RedirectResponse(address("/ask", model=model, version=version, answer=number), 303)

    def _begin(self, question: Question) -> str:
        waiting = sum(not each.task.done() for each in self._answering.values())
        if waiting >= _WAITING:
            raise UsageError(
                f"{waiting} questions wait for their turn, the limit", do="Ask again when some are answered."
            )
        number = secrets.token_urlsafe(12)
        task = asyncio.create_task(self._ask(question))
        self._answering[number] = _Answering(question=question, task=task, began=time.monotonic())
        if len(self._answering) > _KEPT:
            self._answering.popitem(last=False)
        return number

    async def _ask(self, question: Question) -> AskedAgain:
        async with self._turn:
            return await run_in_threadpool(question.ask, self._engine)

    async def _answer(self, number: str, model: str, version: int) -> Response:
        answering = self._answering.get(number)
        if answering is None or (answering.question.model, answering.question.version) != (model, version):
            raise NotFound("that answer is no longer kept", do="Ask again.")
        await asyncio.wait({answering.task}, timeout=0.5)
        asked, problem = None, None
        if answering.task.done():
            try:
                asked = answering.task.result()
            except ShipliftError as error:
                problem = error
        variables = {"model": model, "version": version, "form": answering.question.form, "number": number}
        seconds = time.monotonic() - answering.began
        page = render("asked.html.j2", told=None, asked=asked, problem=problem, seconds=seconds, **variables)
        return HTMLResponse(page)

    async def _admitted(self, model: str, version: int) -> Records:
        records = (await self._reading.records(model, version)).value
        if records.missing:
            raise Temporary(f"the records of {model}/{version} can't be read: {records.missing}", do="Try again.")
        if records.admitted is None:
            raise NotFound(f"{model}/{version} was not admitted, so it can't be asked", do="Its report says why.")
        return records

    def _page(self, request: Request, records: Records, given: Mapping[str, str], *, wrong: str = "") -> Response:
        cookie, form = self._forms.open(request)
        served = _as_served(records)
        text = render(
            "ask.html.j2",
            told=None,
            model=served.model,
            version=served.version,
            forms=records.forms,
            chosen=given.get("variant", records.package.variant if records.package else ""),
            rows=given.get("rows", ""),
            entries=() if "json" in given else entries_of(served, given, records.kind),
            json=given.get("json", "") or example_row(served),
            form=form,
            asks_token=self._access.asks_token,
            wrong=wrong,
        )
        return self._forms.keep(HTMLResponse(text), cookie)


def _as_served(records: Records) -> ServedModel:
    """A version's inputs, as those of one that serves."""
    assert records.admitted is not None  # noqa: S101 - `_admitted` gave them
    report, contract = records.report, records.admitted.contract
    return ServedModel(
        model=report.model,
        name=report.model,
        version=report.version,
        grpc="",
        http="",
        signature=contract.signature,
        scoring=contract.scoring,
    )


def _question(records: Records, given: Mapping[str, str]) -> Question:
    served, form = _as_served(records), given.get("variant", "")
    if form and form not in records.forms:
        raise UsageError(f"there is no form {form[:50]!r}", do="Choose one of the list.")
    rows = _rows(given.get("rows", ""))
    row = {} if rows else row_of(served, given)
    return Question(model=served.model, version=served.version, form=form, rows=rows, row=row)


def _rows(text: str) -> tuple[int, ...]:
    words = text.replace(",", " ").split()
    if len(words) > _ROWS or not all(word.isascii() and word.isdecimal() and len(word) < 10 for word in words):
        raise UsageError(f"{text[:50]!r} are no rows", do=f"Write at most {_ROWS} numbers, such as `12, 40`.")
    return tuple(map(int, words))
