"""Forms that do something: read within limits, and only if this page made them (no cross-site request forgery).

A form carries a token that is made from a cookie and a secret of this process. Another site can make a browser send a
form here, but it can read neither. A browser also says from where a form comes.
"""

import asyncio
import hashlib
import hmac
import secrets
from collections import OrderedDict
from http.cookies import SimpleCookie
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import Request
from starlette.responses import Response

from shiplift.runtime.base.errors import UsageError

MAX_BYTES = 1 << 20
_USED = 10_000
_COOKIE, FIELD = "shiplift_page", "form"
_AGAIN = "Load the page again, then send the form again."


class PageForms:
    """The forms of one process."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._used: OrderedDict[str, None] = OrderedDict()

    def open(self, request: Request) -> tuple[str, str]:
        """The browser's cookie, a new one if it has none, and the token for a form."""
        cookie, number = _cookie(request) or secrets.token_urlsafe(24), secrets.token_urlsafe(12)
        return cookie, f"{number}.{self._signed(cookie, number)}"

    def keep(self, response: Response, cookie: str) -> Response:
        """The response, which makes the browser keep the cookie."""
        response.set_cookie(_COOKIE, cookie, httponly=True, samesite="strict")
        return response

    async def read(self, request: Request, *, once: bool = False, most: int = MAX_BYTES) -> dict[str, str]:
        """The fields of a form that was sent here, in `most` bytes; with `once`, it can't be sent again.

        A second click would do that.

        Raises:
            UsageError: it is too large, another site sent it, or this page did not make it.
        """
        if not _from_here(request):
            raise UsageError("another site sent this form", do=_AGAIN)
        fields = await asyncio.to_thread(_fields, await _body(request, most))
        cookie = _cookie(request)
        number, _, given = fields.get(FIELD, "").partition(".")
        if not cookie or not hmac.compare_digest(given.encode(), self._signed(cookie, number).encode()):
            raise UsageError("this form is not of this page, or the page was started again meanwhile", do=_AGAIN)
        if once:
            self._use(number)
        return fields

    def _use(self, number: str) -> None:
        if number in self._used:
            raise UsageError("this form was sent before", do="Look at what it did, and load the page again.")
        self._used[number] = None
        if len(self._used) > _USED:
            self._used.popitem(last=False)

    def _signed(self, cookie: str, number: str) -> str:
        return hmac.new(self._secret, f"{cookie}\n{number}".encode(), hashlib.sha256).hexdigest()


def _cookie(request: Request) -> str:
    jar: SimpleCookie = SimpleCookie()
    jar.load(request.headers.get("cookie", ""))
    return jar[_COOKIE].value if _COOKIE in jar else ""


def _from_here(request: Request) -> bool:
    """Whether the browser says that the form is of this site, or says nothing."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = request.headers.get("origin", "")
    return not origin or urlsplit(origin).netloc == request.headers.get("host", "")


async def _body(request: Request, most: int) -> str:
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/x-www-form-urlencoded":
        raise UsageError(f"a form is application/x-www-form-urlencoded, not {kind or 'nothing'}", do=_AGAIN)
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise UsageError(f"the form has more than {most} bytes, the limit", do="Send less.")
    return body.decode(errors="replace")


def _fields(body: str) -> dict[str, str]:
    try:
        return dict(parse_qsl(body, keep_blank_values=True, max_num_fields=100))
    except ValueError as error:
        raise UsageError("the form has more than 100 fields", do=_AGAIN) from error
