"""What stands before every page: the names under which it answers, and the headers that keep browsers from harm.

A web site that a user visits can make its own name point to this machine (DNS rebinding), to read and post here. The
`Host` of such a request is the site's name, which is refused.
"""

import hmac
import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from shiplift.runtime.base.errors import UsageError
from shiplift.runtime.host.listeners import is_loopback

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}


class NotAllowed(UsageError):
    """Someone who may only look wanted to act."""

    title = "not allowed"


@dataclass(frozen=True, kw_only=True)
class Access:
    """Where the page listens, the names that it has there beside its addresses, and who may act.

    On loopback everyone on this machine may, as with the command line. Elsewhere it takes the `token`; empty: nobody.
    """

    host: str
    names: tuple[str, ...] = ()
    token: str = ""

    @property
    def local(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)

    @property
    def acts(self) -> bool:
        """Whether anybody may act."""
        return self.local or bool(self.token)

    @property
    def asks_token(self) -> bool:
        """Whether those who act have to give the token."""
        return not self.local and bool(self.token)

    def may_act(self, token: str) -> bool:
        """Whether someone with this token may act."""
        return self.local or (bool(self.token) and hmac.compare_digest(token.encode(), self.token.encode()))

    def require_actors(self) -> None:
        """Ends a request that acts, if nobody may.

        Raises:
            NotAllowed: the page only shows.
        """
        if not self.acts:
            why = "this page only shows: it listens on an address that others reach, and has no token"
            raise NotAllowed(why, do="Use the commands, or start the page with SHIPLIFT_PAGE_TOKEN.")

    def answers_to(self, host: str) -> bool:
        """Whether a request's `Host` is one of its own. Addresses are: a site can't give itself one as its name."""
        name = _name(host)
        if name in ("localhost", *self.names):
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not self.local


def guarded(app: App, access: Access) -> App:
    """The application behind the check of `Host`, with those headers on its answers that it did not set itself."""

    async def answer(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        if not access.answers_to(host):
            await _misdirected(send)
            return
        await app(scope, receive, _adding_headers(send))

    return answer


def _adding_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = {name.lower() for name, _ in message["headers"]}
            more = [(name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in given]
            message = {**message, "headers": [*message["headers"], *more]}
        await send(message)

    return sending


async def _misdirected(send: Send) -> None:
    text = b"This page does not answer under that name. Open it at the address that `shiplift open --print` prints.\n"
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(text)).encode())]
    await send({"type": "http.response.start", "status": 421, "headers": headers})
    await send({"type": "http.response.body", "body": text})


def _name(host: str) -> str:
    """The name or the address in a `Host` header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().rstrip(".")
