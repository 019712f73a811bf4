"""The application: its addresses, and what it answers if something is wrong."""

from collections.abc import Awaitable, Callable

import httpx
import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from shiplift.pipelines.engines.protocol import Engine
from shiplift.pipelines.page.acting import Acting
from shiplift.pipelines.page.asking import AnswerCache
from shiplift.pipelines.page.candidates import CandidatePages
from shiplift.pipelines.page.doors import Access, App, NotAllowed, guarded
from shiplift.pipelines.page.following import Following
from shiplift.pipelines.page.forms import PageForms
from shiplift.pipelines.page.reading import PageReader
from shiplift.pipelines.page.rendering import static_files
from shiplift.pipelines.page.stream import Stream
from shiplift.pipelines.page.trying import Trying
from shiplift.pipelines.page.views import Views, problem_page
from shiplift.pipelines.page.what_if import WhatIf
from shiplift.runtime.base.errors import NotAdmitted, NotFound, ShipliftError, UsageError

Handler = Callable[[Request], Awaitable[Response]]
_STATUS: dict[type[ShipliftError], int] = {NotFound: 404, NotAllowed: 403, UsageError: 400, NotAdmitted: 400}
_FOREVER = "public, max-age=31536000, immutable"  # the address has the file's digest


def create_app(
    engine: Engine,
    access: Access,
    *,
    asking: AnswerCache | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
) -> App:
    """The page of an engine as an ASGI application; `transport` is for its requests to models."""
    reading = PageReader(engine, asking or AnswerCache())
    views, stream = Views(reading, access), Stream(reading, Following(engine))
    forms = PageForms()
    acting, trying = Acting(engine, reading, access, forms), Trying(reading, access, forms, transport=transport)
    candidates = CandidatePages(engine, reading, access, forms)
    routes = [
        Route("/", views.models),
        Route("/model", views.model),
        Route("/release", views.release),
        Route("/report", views.report),
        Route("/events", stream.events),
        Route("/what-if", WhatIf(reading).show),
        Route("/try", trying.form, methods=["GET"]),
        Route("/try", trying.send, methods=["POST"]),
        Route("/ask", candidates.form, methods=["GET"]),
        Route("/ask", candidates.send, methods=["POST"]),
        Route("/act", acting.asks, methods=["GET"]),
        Route("/act", acting.does, methods=["POST"]),
        Route("/static/{name}", _static),
        Route("/healthz", _healthy),
    ]
    app = Starlette(
        routes=routes, exception_handlers={ShipliftError: _refused, HTTPException: _no_such, Exception: _bug}
    )
    return guarded(app, access)


async def _healthy(_: Request) -> Response:
    return PlainTextResponse("ok\n")


async def _static(request: Request) -> Response:
    file = static_files().get(request.path_params["name"])
    if file is None:
        raise HTTPException(404)
    return Response(file.body, headers={"content-type": file.media_type, "cache-control": _FOREVER})


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, ShipliftError)  # noqa: S101 - it is registered for these
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 503)
    return HTMLResponse(problem_page(error.title, error.what, error.do, again=status == 503), status)


async def _no_such(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - it is registered for these
    if error.status_code == 404:
        text = problem_page("not found", f"There is no page {request.url.path}.", "Go back to the models.")
    else:
        text = problem_page("refused", error.detail, "Go back to the models.")
    return HTMLResponse(text, error.status_code)


async def _bug(request: Request, error: Exception) -> Response:
    structlog.get_logger().error("failed", path=request.url.path, error=repr(error))
    what = f"The page failed: {type(error).__name__}."
    return HTMLResponse(problem_page("internal error", what, "See `shiplift logs page`."), 500)
