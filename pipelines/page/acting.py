"""The page that asks whether to do something and why, and the answer once it is done."""

from typing import Any

import structlog
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from shiplift.pipelines.engines.protocol import Engine
from shiplift.pipelines.page import actions
from shiplift.pipelines.page.addresses import text_in, version_in
from shiplift.pipelines.page.doors import Access, NotAllowed
from shiplift.pipelines.page.forms import PageForms
from shiplift.pipelines.page.reading import PageReader
from shiplift.pipelines.page.rendering import render
from shiplift.runtime.base.errors import NotFound, UsageError


class Acting:
    """The handlers of the actions' address."""

    def __init__(self, engine: Engine, reading: PageReader, access: Access, forms: PageForms) -> None:
        self._engine, self._reading, self._access, self._forms = engine, reading, access, forms

    async def asks(self, request: Request) -> Response:
        """Asks whether to do it, and why."""
        self._access.require_actors()
        name, action = _action(request)
        model, version = version_in(request)
        known = (await self._reading.model(model)).value.version(version)
        if known is None or not action.fits(known):
            raise UsageError(f"{action.label!r} does not fit {model} version {version}", do="Go back to the version.")
        cookie, form = self._forms.open(request)
        where = {"name": name, "action": action, "model": model, "version": version}
        return self._forms.keep(self._page("act.html.j2", form=form, **where), cookie)

    async def does(self, request: Request) -> Response:
        """Does it, if the form is this page's, and whoever sent it may and says why."""
        self._access.require_actors()
        name, action = _action(request)
        model, version = version_in(request)
        fields = await self._forms.read(request, once=True)
        if not self._access.may_act(fields.get("token", "")):
            raise NotAllowed("the token is wrong", do="Give the one that the page was started with.")
        reason = fields.get("reason", "").strip()
        if not reason:
            raise UsageError("the reason is missing", do="Go back and say why: the registry keeps it.")
        who = f"{'a user of this machine' if self._access.local else 'whoever has the token'}, {_address(request)}"
        structlog.get_logger().info("action", action=name, model=model, version=version, reason=reason, who=who)
        done = await run_in_threadpool(actions.do, self._engine, name, model, version, reason=reason, who=who)
        self._reading.forget()
        return self._page("done.html.j2", action=action, model=model, version=version, done=done)

    def _page(self, template: str, **variables: Any) -> Response:
        return HTMLResponse(render(template, told=None, asks_token=self._access.asks_token, **variables))


def _action(request: Request) -> tuple[str, actions.Action]:
    name = text_in(request, "action")
    if name not in actions.ACTIONS:
        raise NotFound(f"there is no action {name!r}", do=f"There are {', '.join(actions.ACTIONS)}.")
    return name, actions.ACTIONS[name]


def _address(request: Request) -> str:
    return request.client.host if request.client else "unknown"
