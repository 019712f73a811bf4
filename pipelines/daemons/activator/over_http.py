"""Holds requests over HTTP and forwards them, as an ASGI application."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any

import httpx

from shiplift.pipelines.daemons.activator.forwarding import OWN_PREFIX, Addresses, target_of
from shiplift.pipelines.daemons.activator.holding import AskedService, Holding, HoldingLimit, NotHeld
from shiplift.runtime.base.plain_http import NO_AUTHORITIES
from shiplift.runtime.serving.kubernetes.objects.activator import ANSWERED_HEADER, PROBE_HEADER

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]
_HOP_BY_HOP = {
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "expect",
}
_STATUS = {HoldingLimit.FULL: 429, HoldingLimit.LATE: 503}
_AGAIN_S = 0.1


class HttpFront:
    """The ASGI application. Requests without a route's headers are health checks, which it answers itself."""

    def __init__(self, holding: Holding, addresses: Addresses) -> None:
        self._holding, self._addresses = holding, addresses
        timeout = httpx.Timeout(None, connect=2.0)  # the client or the gateway decides when to give up
        self._client = httpx.AsyncClient(
            timeout=timeout,
            trust_env=False,
            verify=NO_AUTHORITIES,
            limits=httpx.Limits(max_connections=None, keepalive_expiry=2),
        )

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            return None
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        fields = dict(headers)
        target = target_of(fields)
        if target is None:
            return await _answer(send, 200 if scope["method"] == "GET" else 404)
        if PROBE_HEADER in fields:
            return await _answer(send, 200, headers={ANSWERED_HEADER: target.service})
        try:
            body = await self._body(receive)
            if body is not None:
                await self._hold(scope, _kept(headers), body, target, receive, send)
        except NotHeld as refused:
            await _answer(send, _STATUS[refused.limit], str(refused), headers={"retry-after": "1"})
        return None

    async def close(self) -> None:
        """Closes the client."""
        await self._client.aclose()

    async def _body(self, receive: Receive) -> bytes | None:
        """A request's body; None if the client went away."""
        parts, size, limit = [], 0, self._holding.bounds.size_bytes
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limit:
                raise NotHeld(
                    HoldingLimit.FULL, f"the request has more than {limit} bytes, the limit for held requests"
                )
            if not message.get("more_body"):
                return b"".join(parts)

    async def _hold(
        self,
        scope: dict[str, Any],
        headers: list[tuple[str, str]],
        body: bytes,
        target: AskedService,
        receive: Receive,
        send: Send,
    ) -> None:
        """Holds a request and forwards it, unless the client goes away first."""
        async with self._holding.place(target, len(body)) as deadline:
            work = asyncio.create_task(self._send_on(scope, headers, body, target, deadline, send))
            gone = asyncio.create_task(_gone(receive))
            try:
                await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (gone, work):
                    if not task.done():
                        task.cancel()
                await asyncio.wait({work, gone})
            with suppress(asyncio.CancelledError):
                work.result()

    async def _send_on(
        self,
        scope: dict[str, Any],
        headers: list[tuple[str, str]],
        body: bytes,
        target: AskedService,
        deadline: float,
        send: Send,
    ) -> None:
        answer = await self._asked(scope, headers, body, target, deadline)
        try:
            kept = [(name.encode(), value.encode("latin-1")) for name, value in _kept(answer.headers.multi_items())]
            await send({"type": "http.response.start", "status": answer.status_code, "headers": kept})
            async for part in answer.aiter_raw():
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            await answer.aclose()

    async def _asked(
        self, scope: dict[str, Any], headers: list[tuple[str, str]], body: bytes, target: AskedService, deadline: float
    ) -> httpx.Response:
        """The start of the answer. Retries only failed connections: once a server has the request, it may act on it."""
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        while True:
            name = await self._holding.ready(target, deadline)
            url = httpx.URL(f"http://{self._addresses.http(name)}").copy_with(raw_path=scope["raw_path"] + query)
            try:
                request = httpx.Request(scope["method"], url, headers=headers, content=body)
                return await self._client.send(request, stream=True)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                if asyncio.get_running_loop().time() > deadline:
                    raise self._holding.late(target) from None
                await asyncio.sleep(_AGAIN_S)
            except httpx.HTTPError as error:
                why = str(error) or type(error).__name__
                return httpx.Response(502, text=f"{target.service} did not answer: {why}\n")


def _kept(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The headers, without those that concern one connection and those that a route added."""
    headers = [(name.lower(), value) for name, value in headers]
    listed = {part.strip().lower() for name, value in headers if name == "connection" for part in value.split(",")}
    dropped = _HOP_BY_HOP | listed
    return [(name, value) for name, value in headers if name not in dropped and not name.startswith(OWN_PREFIX)]


async def _gone(receive: Receive) -> None:
    """Returns when the client has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _answer(send: Send, status: int, text: str = "", *, headers: dict[str, str] | None = None) -> None:
    """Sends a short answer of the activator's own; errors have Triton's JSON form."""
    body = json.dumps({"error": text}).encode() if text else b""
    fields = {"content-length": str(len(body)), **({"content-type": "application/json"} if text else {})}
    pairs = [(name.encode(), value.encode()) for name, value in (fields | (headers or {})).items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})
