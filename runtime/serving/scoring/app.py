"""The application: MLflow's routes, below `/models/NAME` for each model, and at the root for one of them.

It is plain ASGI: a framework's routing and validation would take longer than the model. A key, if there is one, is
checked before anything else, and the size of bodies while they are read.
"""

import hmac
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version
from typing import Any
from urllib.parse import unquote

import structlog

from shiplift.runtime.serving.scoring.models import LookUp, Scorable, ScoringModels
from shiplift.runtime.serving.scoring.problems import BAD_REQUEST, ScoringProblem
from shiplift.runtime.serving.scoring.requests import JSON, media_type
from shiplift.runtime.serving.scoring.scorer import Scorer

MAX_BODY_BYTES = 16 << 20  # as Python objects, JSON takes twenty times as much
_MLFLOW = "mlflow-skinny"
_ALIVE = ("/ping", "/health")

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]


class ScoringApp:
    """The application; `look_up` returns all served models, and `default` is the one that answers at the root.

    With a `key`, requests must carry it as their token, except for those that ask whether this process answers.
    """

    def __init__(self, look_up: LookUp, *, default: str = "", key: str = "") -> None:
        self._models, self._scorer, self._key = ScoringModels(look_up, default), Scorer(), key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or the server's start and end."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        try:
            status, body, kind = await self._answer(scope, receive)
        except ScoringProblem as problem:
            status, body, kind = problem.status, problem.body, problem.media_type
        except Exception:
            structlog.get_logger().exception("failed", path=scope["path"])
            bug = ScoringProblem(500, "internal error: see the log of the scoring server", code="INTERNAL_ERROR")
            status, body, kind = bug.status, bug.body, bug.media_type
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[int, bytes, str]:
        headers, path = dict(scope["headers"]), scope["path"]
        if scope["method"] in ("GET", "HEAD") and path in _ALIVE:
            return 200, b"\n", JSON
        self._check_key(headers)
        model, route = _routed(scope["raw_path"].decode("latin-1"))
        if scope["method"] in ("GET", "HEAD") and route == "/version":
            return 200, version(_MLFLOW).encode(), JSON
        if scope["method"] in ("GET", "HEAD") and route in _ALIVE:
            await self._models.named(model)
            return 200, b"\n", JSON
        if route != "/invocations":
            raise ScoringProblem(404, f"there is no {path}: /models/NAME/invocations, /ping, /health and /version are")
        if scope["method"] != "POST":
            raise ScoringProblem(405, "/invocations takes POST")
        asked = await self._models.named(model, headers.get(b"host", b"").decode("latin-1"))
        kind = media_type(headers.get(b"content-type", b"").decode("latin-1"))
        return 200, await self._invoked(asked, kind, await _body(headers, receive)), JSON

    async def _invoked(self, model: Scorable, kind: str, body: bytes) -> bytes:
        """The answer. A model that was promoted meanwhile may take other inputs, so a refusal is looked at twice."""
        try:
            return await self._scorer.answer(model, kind, body)
        except ScoringProblem:
            now = await self._models.again(model)
            if now is model:
                raise
        return await self._scorer.answer(now, kind, body)

    def _check_key(self, headers: Mapping[bytes, bytes]) -> None:
        given = headers.get(b"authorization", b"").removeprefix(b"Bearer ").strip()
        if self._key and not hmac.compare_digest(given, self._key):
            raise ScoringProblem(401, "the API key is missing or wrong", code="UNAUTHENTICATED")

    async def _live(self, receive: Receive, send: Send) -> None:
        while (message := await receive())["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        await self._scorer.close()
        await send({"type": f"{message['type']}.complete"})


def _routed(path: str) -> tuple[str, str]:
    """A path's model (empty: none) and route. Names are percent-encoded."""
    if not path.startswith("/models/"):
        return "", path
    name, _, route = path.removeprefix("/models/").partition("/")
    return unquote(name), f"/{route}"


async def _body(headers: Mapping[bytes, bytes], receive: Receive) -> bytes:
    claimed = headers.get(b"content-length", b"0")
    size = int(claimed) if claimed.isdigit() else 0
    parts, more = [], True
    while more and size <= MAX_BODY_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ScoringProblem(400, "the client disconnected", code=BAD_REQUEST)
        parts.append(message.get("body", b""))
        size, more = max(size, sum(map(len, parts))), message.get("more_body", False)
    if size > MAX_BODY_BYTES:
        raise ScoringProblem(413, f"the request has more than {MAX_BODY_BYTES} bytes, the limit: send fewer rows")
    return b"".join(parts)
